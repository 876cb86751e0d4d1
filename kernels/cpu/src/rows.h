// Operations on single rows: norm, rotary; included inside the namespace of an
// instruction set.

template <class T>
static void rms_norm_row(const Norm& a, int64_t row) {
    const T* x = static_cast<const T*>(a.x) + row * a.size;
    const T* weight = static_cast<const T*>(a.weight);
    T* normed = static_cast<T*>(a.normed) + row * a.size;
    vf squares = {};
    for (int64_t i = 0; i < a.size; i += kLanes) {
        const vf v = load_upto(x + i, a.size - i);
        squares += v * v;
    }
    const float scale =
        1.0f / __builtin_sqrtf(sum_of(squares) / static_cast<float>(a.size) + a.eps);
    for (int64_t i = 0; i < a.size; i += kLanes) {
        const vf v = load_upto(x + i, a.size - i) * scale;
        store_upto(normed + i, v * load_upto(weight + i, a.size - i), a.size - i);
    }
}

static void rms_norm(const Norm& a, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        if (a.dtype == kBFloat16)
            rms_norm_row<uint16_t>(a, row);
        else
            rms_norm_row<float>(a, row);
    }
}

template <class T>
static void rotate_head(const Rotary& a, const T* from, T* to, const void* norm, int64_t token) {
    const int64_t half = a.head_dim / 2;
    const float* cos = a.cos + token * a.stride;
    const float* sin = a.sin + token * a.stride;
    const T* weight = static_cast<const T*>(norm);
    float scale = 1.0f;
    if (weight != nullptr) {
        vf squares = {};
        for (int64_t i = 0; i < a.head_dim; i += kLanes) {
            const vf v = load_upto(from + i, a.head_dim - i);
            squares += v * v;
        }
        scale = 1.0f / __builtin_sqrtf(sum_of(squares) / static_cast<float>(a.head_dim) + a.eps);
    }
    for (int64_t i = 0; i < half; i += kLanes) {
        vf first = load_upto(from + i, half - i);
        vf second = load_upto(from + half + i, half - i);
        if (weight != nullptr) {
            first = kept_as(first * scale * load_upto(weight + i, half - i), from);
            second = kept_as(second * scale * load_upto(weight + half + i, half - i), from);
        }
        const vf c = load_upto(cos + i, half - i), s = load_upto(sin + i, half - i);
        store_upto(to + i, first * c - second * s, half - i);
        store_upto(to + half + i, second * c + first * s, half - i);
    }
}

template <class T>
static void rotary_token(const Rotary& a, int64_t token) {
    const int64_t dim = a.head_dim;
    T* q = static_cast<T*>(a.heads) + token * (a.num_qo_heads + 2 * a.num_kv_heads) * dim;
    T* k = q + a.num_qo_heads * dim;
    T* v = k + a.num_kv_heads * dim;
    const int64_t place = a.slots[token] * a.num_kv_heads * dim;
    T* k_to = static_cast<T*>(a.k_cache) + place;
    T* v_to = static_cast<T*>(a.v_cache) + place;
    for (int64_t h = 0; h < a.num_qo_heads; ++h)
        rotate_head<T>(a, q + h * dim, q + h * dim, a.q_norm, token);
    for (int64_t h = 0; h < a.num_kv_heads; ++h)
        rotate_head<T>(a, k + h * dim, k_to + h * dim, a.k_norm, token);
    __builtin_memcpy(v_to, v, static_cast<size_t>(a.num_kv_heads * dim) * sizeof(T));
}

static void rotary(const Rotary& a, int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
        if (a.dtype == kBFloat16)
            rotary_token<uint16_t>(a, token);
        else
            rotary_token<float>(a, token);
    }
}
