// How a block of K and V is laid out to be multiplied, and how a step of the products is done;
// included inside the namespace of an instruction set. Rows are given as bytes, one for each token.
//
// A block's K is transposed, so that scores are sums over registers of tokens without a horizontal
// step; bfloat16 pairs stay pairs where the machine multiplies them. Weights are then rounded to
// bfloat16 and the divisor adds up what was rounded.

// Everything is widened to float32.
template <class T>
struct WideMode {
    typedef T Type;
    typedef vf Column;
    static constexpr int kPack = 1;  // values in a word
    RS_INLINE vf read(const uint32_t* from) { return load(reinterpret_cast<const float*>(from)); }
    RS_INLINE vf spread(const uint32_t* from) {
        float value;
        __builtin_memcpy(&value, from, sizeof value);
        return splat(value);
    }
    RS_INLINE vf add(vf sum, vf a, vf b) { return a * b + sum; }

    // weights[i] = exp2(scores[i] * scale - top), of V vectors; the divisor grows by them.
    template <int V>
    RS_INLINE void weigh(const vf* scores, float scale, float top, float* divisor,
                         uint32_t* weights) {
        vf sum = load(divisor);
#pragma GCC unroll 16
        for (int i = 0; i < V; ++i) {
            const vf weight = exp2_of(scores[i] * scale - top);
            store(reinterpret_cast<float*>(weights) + i * kLanes, weight);
            sum += weight;
        }
        store(divisor, sum);
    }
    RS_INLINE void put_query(uint32_t* to, const T* from, int64_t dim) {
        for (int64_t i = 0; i < dim; i += kLanes)
            store_upto(reinterpret_cast<float*>(to) + i, load_upto(from + i, dim - i), dim - i);
    }
    RS_INLINE const T* row(const char* const* rows, int t, int64_t offset) {
        return reinterpret_cast<const T*>(rows[t] + offset);
    }
    // to: [dim, kBlock]. count: tokens, a multiple of kLanes.
    static void put_keys(uint32_t* to, const char* const* rows, int64_t offset, int64_t dim,
                         int count) {
        for (int t = 0; t < count; t += kLanes)
            for (int64_t d = 0; d < dim; d += kLanes) {
                const int64_t n = dim - d < kLanes ? dim - d : kLanes;
                vf part[kLanes];
                for (int i = 0; i < kLanes; ++i)
                    part[i] = load_upto(row(rows, t + i, offset) + d, n);
                Butterfly<kLanes / 2>::transpose(part);
                for (int64_t i = 0; i < n; ++i)
                    store(reinterpret_cast<float*>(to) + (d + i) * kBlock + t, part[i]);
            }
    }
    // Of one step's row, `offset` bytes into it, C vectors.
    template <int C>
    RS_INLINE void read_values(const char* const* rows, int64_t offset, Column* to) {
        for (int c = 0; c < C; ++c) to[c] = load(row(rows, 0, offset) + c * kLanes);
    }
    // to: [kBlock, padded]. count: tokens.
    static void put_values(uint32_t* to, const char* const* rows, int64_t offset, int64_t dim,
                           int64_t padded, int count) {
        for (int t = 0; t < count; ++t)
            for (int64_t d = 0; d < padded; d += kLanes)
                store(reinterpret_cast<float*>(to) + t * padded + d,
                      d < dim ? load_upto(row(rows, t, offset) + d, dim - d) : vf{});
    }
};

#ifdef __AVX512BF16__
struct PairMode {
    typedef uint16_t Type;
    typedef __m512i Column;
    static constexpr int kPack = 2;
    static constexpr __mmask16 kAll = 0xffff;
    RS_INLINE __m512i read(const uint32_t* from) { return _mm512_loadu_si512(from); }
    RS_INLINE __m512i spread(const uint32_t* from) {
        return _mm512_set1_epi32(static_cast<int>(*from));
    }
    RS_INLINE vf add(vf sum, __m512i a, __m512i b) {
        return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
    // 2 ** x for weights that are rounded to bfloat16: off by less than 3e-6 of it. 0 of -inf.
    RS_INLINE __m512 power(vf x) {
        const __m512 f = _mm512_maskz_reduce_ps(kAll, (__m512)x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
        vf p = splat(1.3534170e-2f);
        p = p * (vf)f + 5.2011460e-2f;
        p = p * (vf)f + 2.4144276e-1f;
        p = p * (vf)f + 6.9300383e-1f;
        p = p * (vf)f + 1.0000026f;
        return _mm512_maskz_scalef_ps(kAll, (__m512)p, (__m512)x);
    }
    template <int V>
    RS_INLINE void weigh(const vf* scores, float scale, float top, float* divisor,
                         uint32_t* weights) {
        const __m512i ones = _mm512_set1_epi16(0x3f80);
        vf sum = load(divisor);
#pragma GCC unroll 16
        for (int i = 0; i < V; i += 2) {
            const __m512 low = power(scores[i] * scale - top);
            const __m512 high = power(scores[i + 1] * scale - top);
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_si512(weights + i / 2 * kLanes, both);
            sum = add(sum, both, ones);
        }
        store(divisor, sum);
    }
    RS_INLINE void put_query(uint32_t* to, const uint16_t* from, int64_t dim) {
        __builtin_memcpy(to, from, static_cast<size_t>(dim) * sizeof(uint16_t));
    }
    // Eight words, `from` bytes into each, of one row and of another.
    RS_INLINE __m512i two_rows(const char* row, const char* other, int64_t from) {
        const auto eight = [&](const char* at) {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + from));
        };
        return _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(eight(row)), eight(other), 1);
    }
    // Word j of 16 rows to to + j * kBlock, for eight words.
    RS_INLINE void turn_eight(uint32_t* to, const char* const* rows, int64_t from) {
        // A quarter of quads[j + 4 n] has word j or j + 4 of four rows: 0 to 3, then 4 to 7 for n = 0,
        // 8 to 11, then 12 to 15 for n = 1.
        __m512i quads[8];
#pragma GCC unroll 2
        for (int n = 0; n < 2; ++n, rows += 8) {
            __m512i row[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) row[r] = two_rows(rows[r], rows[r + 4], from);
            const __m512i a = _mm512_maskz_unpacklo_epi32(kAll, row[0], row[1]);
            const __m512i b = _mm512_maskz_unpacklo_epi32(kAll, row[2], row[3]);
            const __m512i c = _mm512_maskz_unpackhi_epi32(kAll, row[0], row[1]);
            const __m512i d = _mm512_maskz_unpackhi_epi32(kAll, row[2], row[3]);
            quads[4 * n] = _mm512_maskz_unpacklo_epi64(0xff, a, b);
            quads[4 * n + 1] = _mm512_maskz_unpackhi_epi64(0xff, a, b);
            quads[4 * n + 2] = _mm512_maskz_unpacklo_epi64(0xff, c, d);
            quads[4 * n + 3] = _mm512_maskz_unpackhi_epi64(0xff, c, d);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const __m512i x = quads[j], y = quads[j + 4];
            _mm512_storeu_si512(to + j * kBlock, _mm512_maskz_shuffle_i32x4(kAll, x, y, 0x88));
            _mm512_storeu_si512(to + (j + 4) * kBlock,
                                _mm512_maskz_shuffle_i32x4(kAll, x, y, 0xdd));
        }
    }
    static void put_keys(uint32_t* to, const char* const* rows, int64_t offset, int64_t dim,
                         int count) {
        const int64_t words = dim / 2;
        for (int t = 0; t < count; t += kLanes, rows += kLanes, to += kLanes) {
            int64_t w = 0;
            for (; w + 8 <= words; w += 8) turn_eight(to + w * kBlock, rows, offset + w * 4);
            for (; w < words; ++w)
                for (int i = 0; i < kLanes; ++i)
                    __builtin_memcpy(to + w * kBlock + i, rows[i] + offset + w * 4, 4);
        }
    }
    // Words of one register and of another taken in turn, from `first` on.
    RS_INLINE __m512i interleaving(int first) {
        alignas(64) uint16_t place[32];
        for (int i = 0; i < 32; ++i)
            place[i] = static_cast<uint16_t>(first + i / 2 + (i % 2 ? 32 : 0));
        return _mm512_load_si512(place);
    }
    RS_INLINE const uint16_t* row(const char* const* rows, int t, int64_t offset) {
        return reinterpret_cast<const uint16_t*>(rows[t] + offset);
    }
    // Of one step, two rows, `offset` bytes into them, C vectors. The low half of a word is the
    // first row's.
    template <int C>
    RS_INLINE void read_values(const char* const* rows, int64_t offset, Column* to) {
        const __m512i low = interleaving(0), high = interleaving(16);
#pragma GCC unroll 4
        for (int c = 0; c < C; c += 2) {
            const __m512i a = _mm512_loadu_si512(row(rows, 0, offset) + c * 16);
            const __m512i b = _mm512_loadu_si512(row(rows, 1, offset) + c * 16);
            to[c] = _mm512_permutex2var_epi16(a, low, b);
            to[c + 1] = _mm512_permutex2var_epi16(a, high, b);
        }
    }
    static void put_values(uint32_t* to, const char* const* rows, int64_t offset, int64_t dim,
                           int64_t padded, int count) {
        for (int t = 0; t < count; t += 2, rows += 2, to += padded) {
            int64_t d = 0;
            for (; d + 64 <= dim; d += 64) {
                Column columns[4];
                read_values<4>(rows, offset + d * 2, columns);
#pragma GCC unroll 4
                for (int c = 0; c < 4; ++c) _mm512_storeu_si512(to + d + c * kLanes, columns[c]);
            }
            for (; d < padded; d += kLanes) {
                const auto some = [&](int i) {
                    return d < dim ? (vu)load_upto(row(rows, i, offset) + d, dim - d) : vu{};
                };
                const vu pair = some(0) >> 16 | some(1);
                __builtin_memcpy(to + d, &pair, sizeof pair);
            }
        }
    }
};
#endif
