// Vectors of kLanes floats in the compiler's own vector types, so that one source serves every
// instruction set; included inside the namespace of one. Owns: loads, stores, bfloat16, exp,
// reductions, transposition. Nothing here may be shared between translation units: each is compiled
// for another machine, and the linker would keep any one of them.

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));

#define RS_INLINE static inline __attribute__((always_inline))

template <int... I>
struct Indices {};
template <int N, int... I>
struct Counting : Counting<N - 1, N - 1, I...> {};
template <int... I>
struct Counting<0, I...> {
    typedef Indices<I...> Type;
};

RS_INLINE vf splat(float value) { return value - vf{}; }

// Register by register: as one array the compiler would also clear memory that nobody reads.
template <int N>
RS_INLINE void clear(vf* v) {
#pragma GCC unroll 32
    for (int i = 0; i < N; ++i) v[i] = vf{};
}

RS_INLINE vf load(const float* from) {
    vf v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

RS_INLINE vf load(const uint16_t* from) {
    vh half;
    __builtin_memcpy(&half, from, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

RS_INLINE vh rounded(vf v) {  // to nearest, ties to even; NaN stays NaN
#ifdef __AVX512BF16__
    return (vh)_mm512_cvtneps_pbh((__m512)v);
#else
    const vu bits = (vu)v;
    const vu even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return __builtin_convertvector(v == v ? even : vu{} + 0x7fc0u, vh);
#endif
}

RS_INLINE void store(float* to, vf v) { __builtin_memcpy(to, &v, sizeof v); }

RS_INLINE void store(uint16_t* to, vf v) {
    const vh half = rounded(v);
    __builtin_memcpy(to, &half, sizeof half);
}

template <class T>
RS_INLINE vf load_some(const T* from, int64_t n) {  // the rest is 0
    T room[kLanes] = {};
    __builtin_memcpy(room, from, static_cast<size_t>(n) * sizeof(T));
    return load(room);
}

template <class T>
RS_INLINE void store_some(T* to, vf v, int64_t n) {
    T room[kLanes];
    store(room, v);
    __builtin_memcpy(to, room, static_cast<size_t>(n) * sizeof(T));
}

template <class T>
RS_INLINE vf load_upto(const T* from, int64_t n) {
    return n >= kLanes ? load(from) : load_some(from, n);
}

template <class T>
RS_INLINE void store_upto(T* to, vf v, int64_t n) {
    if (n >= kLanes)
        store(to, v);
    else
        store_some(to, v, n);
}

// What v is after it has been kept in a T.
RS_INLINE vf kept_as(vf v, const float*) { return v; }
RS_INLINE vf kept_as(vf v, const uint16_t*) {
    return (vf)(__builtin_convertvector(rounded(v), vu) << 16);
}

RS_INLINE vf larger(vf a, vf b) { return a > b ? a : b; }

RS_INLINE vf pick(vi where, vf a, vf b) { return where ? a : b; }

template <int S, int... I>
RS_INLINE vf low_half(vf a, vf b, Indices<I...>) {
    return __builtin_shufflevector(a, b, ((I & S) ? kLanes + I - S : I)...);
}

template <int S, int... I>
RS_INLINE vf high_half(vf a, vf b, Indices<I...>) {
    return __builtin_shufflevector(a, b, ((I & S) ? kLanes + I : I + S)...);
}

typedef Counting<kLanes>::Type Lanes;

template <int S>
struct Butterfly {
    // Lane j of v[0] becomes the sum of the lanes of v[j]. The order of the additions is the same
    // for every j.
    RS_INLINE void sum(vf* v) {
        for (int i = 0; i < S; ++i)
            v[i] = low_half<S>(v[i], v[i + S], Lanes()) + high_half<S>(v[i], v[i + S], Lanes());
        Butterfly<S / 2>::sum(v);
    }
    RS_INLINE void transpose(vf* v) {
        for (int i = 0; i < kLanes; ++i) {
            if (i & S) continue;
            const vf a = v[i], b = v[i + S];
            v[i] = low_half<S>(a, b, Lanes());
            v[i + S] = high_half<S>(a, b, Lanes());
        }
        Butterfly<S / 2>::transpose(v);
    }
    template <class Op>
    RS_INLINE vf fold(vf v, Op op) {
        return Butterfly<S / 2>::fold(op(v, high_half<S>(v, v, Lanes())), op);
    }
};
template <>
struct Butterfly<0> {
    RS_INLINE void sum(vf*) {}
    RS_INLINE void transpose(vf*) {}
    template <class Op>
    RS_INLINE vf fold(vf v, Op) {
        return v;
    }
};

RS_INLINE float sum_of(vf v) {
    return Butterfly<kLanes / 2>::fold(v, [](vf a, vf b) { return a + b; })[0];
}

RS_INLINE float largest_of(vf v) {
    return Butterfly<kLanes / 2>::fold(v, [](vf a, vf b) { return larger(a, b); })[0];
}

RS_INLINE bool any_above(vf v, float limit) {
#ifdef __AVX512BF16__
    return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#else
    return largest_of(v) > limit;
#endif
}

// 2 ** f for f from -0.5 to 0.5.
RS_INLINE vf exp2_near_one(vf f) {
    vf p = splat(1.5252734e-5f);
    p = p * f + 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    return p * f + 1.0f;
}

// 2 ** x; as good as 0 below -126, and 0 of -inf. x <= 127.
RS_INLINE vf exp2_of(vf x) {
#ifdef __AVX512BF16__
    constexpr __mmask16 kAll = 0xffff;
    const vf f = (vf)_mm512_maskz_reduce_ps(kAll, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
    return (vf)_mm512_maskz_scalef_ps(kAll, (__m512)exp2_near_one(f), (__m512)(x - f));
#else
    const vf magic = splat(12582912.0f);  // 1.5 * 2 ** 23: its sum's low bits are the integer
    const vf clamped = larger(x, splat(-127.0f));
    const vf shifted = clamped + magic;
    const vf p = exp2_near_one(clamped - (shifted - magic));
    const vf scaled = (vf)((vu)p + ((vu)shifted << 23));
    return pick(x < -126.0f, vf{}, scaled);
#endif
}

constexpr float kLog2E = 1.4426950408889634f;

RS_INLINE vf exp_of(vf x) { return exp2_of(x * kLog2E); }

RS_INLINE float exp2_of(float x) { return exp2_of(splat(x))[0]; }

RS_INLINE vf silu(vf x) {
    const vf capped = larger(x, splat(-87.0f));  // beyond, exp would overflow and silu is 0
    return pick(x < -87.0f, vf{}, x / (1.0f + exp_of(-capped)));
}
