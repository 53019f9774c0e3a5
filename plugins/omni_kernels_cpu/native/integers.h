// Products of narrow weights with inputs in 8 bits, for the few rows of a decode step. Sums of integers are exact; they are scaled and added
// in one order, so that a row's result depends neither on the other rows nor on its place.
#pragma once
#include "interface.h"
#include "vector.h"

#if defined(__AVX512VNNI__)
#define DOTS 1
#else
#define DOTS 0
#endif

namespace {

constexpr int64_t UNIT = 128;  // inputs of 4-bit weights that are multiplied at once: four groups of 32, each with a scale
constexpr int OUTS = 4;        // outputs at once

// Inputs of 4-bit weights. Lanes 4 * g to 4 * g + 3 belong to group g, as the halves of its 16 bytes do.
struct Unit {
  int8_t first[64], second[64];  // 16 of each group: the inputs of low halves, and of high halves
  int32_t begin[16];             // what makes up for weights that are stored plus 8
  float scales[16];
};

// Inputs of int8 weights: a row has one scale. The bytes follow, in a multiple of 64.
struct alignas(64) ByteRow {
  float scale;
  int32_t begin;  // what makes up for weights that are multiplied plus 128
  const int8_t *bytes() const { return (const int8_t *)(this + 1); }
};

inline int64_t units_of(int64_t size) { return (size + UNIT - 1) / UNIT; }

// Bytes of a prepared row.
inline int64_t integer_bytes(int64_t kind, int64_t size) {
  return kind == OMNI_INT4 ? units_of(size) * (int64_t)sizeof(Unit) : (int64_t)sizeof(ByteRow) + (size + 63) / 64 * 64;
}

// The scale of `size` floats, which makes the largest 127; NaN if one of them is not finite.
inline float integer_scale(const float *x, int64_t size) {
  Floats most = {}, odd = {};
  FOR_VECTORS(i, size) {
    Floats v = load_at(x, i, size), magnitude = v < 0 ? -v : v;
    most = magnitude > most ? magnitude : most;
    odd += v - v;  // NaN, of what is not finite
  }
  float largest = 0;
  for (int i = 0; i < W; i++) largest = most[i] > largest ? most[i] : largest;
  return largest / 127 + sum(odd);
}

// W values, of magnitude 127 at most, as multiples of the scales whose inverses are given.
inline Ints nearest(Floats values, Floats inverse) {
  const Floats shift = broadcast(12582912.0f);
  return (Ints)((Words)(values * inverse + shift) - (Words)shift);
}

inline float inverse_of(float scale) { return scale > 0 ? 1 / scale : 0; }  // 0 of zeros and of NaN

inline void prepare_units(const float *x, int64_t size, Unit *to) {
  if (size % UNIT) memset(to + size / UNIT, 0, sizeof(Unit));
  for (int64_t g = 0; g < size / 32; g++, x += 32) {
    Unit &u = to[g / 4];
    int64_t at = g % 4;
    float scale = integer_scale(x, 32);
    Floats inverse = broadcast(inverse_of(scale));
    int8_t *front = u.first + at * 16, *back = u.second + at * 16;
    for (int64_t i = 0; i < 16; i += W) {
      write(front + i, __builtin_convertvector(nearest(read<Floats>(x + i), inverse), Bytes));
      write(back + i, __builtin_convertvector(nearest(read<Floats>(x + 16 + i), inverse), Bytes));
    }
    for (int lane = 0; lane < 4; lane++) {
      int32_t sum = 0;
      for (int i = 4 * lane; i < 4 * lane + 4; i++) sum += front[i] + back[i];
      u.begin[at * 4 + lane] = -8 * sum;
      u.scales[at * 4 + lane] = scale;
    }
  }
}

inline void prepare_bytes(const float *x, int64_t size, ByteRow *to) {
  int8_t *bytes = (int8_t *)(to + 1);
  int64_t end = (size + 63) / 64 * 64;
  to->scale = integer_scale(x, size);
  Floats inverse = broadcast(inverse_of(to->scale));
  Ints sums = {};
  FOR_VECTORS(i, end) {
    Ints values = i < size ? nearest(load_at(x, i, size), inverse) : Ints{};
    write(bytes + i, __builtin_convertvector(values, Bytes));
    sums += __builtin_convertvector(read<Bytes>(bytes + i), Ints);
  }
  int32_t sum = 0;
  for (int i = 0; i < W; i++) sum += sums[i];
  to->begin = -128 * sum;
}

// The rows of OUTS outputs of a matrix; after the last output it is repeated.
struct Outputs {
  const uint8_t *weights[OUTS];
  const bf16 *scales[OUTS];
  const bf16 *zeros[OUTS];  // zero points of 4-bit weights, or null: they are stored plus 8
};

// A group's sum has its inputs times 8 taken from it. With a zero point z, (z - 8) / 8 of that are added.
template <class T>
inline T zero_shares(T zeros) {
  return (zeros - 8.0f) * 0.125f;
}

#if DOTS
// Scales or zero points of a unit: lane 4 * g + o is that of group g and output o.
inline __m512 unit_scales(const bf16 *const *from, int64_t group, int64_t groups) {
  __m128i v[OUTS];
#pragma GCC unroll 4
  for (int o = 0; o < OUTS; o++) {
    uint64_t four = 0;
    if (groups == 4)
      memcpy(&four, from[o] + group, 8);
    else
      memcpy(&four, from[o] + group, 2 * groups);
    v[o] = _mm_cvtsi64_si128((int64_t)four);
  }
  __m128i front = _mm_unpacklo_epi16(v[0], v[1]), back = _mm_unpacklo_epi16(v[2], v[3]);
  __m256i all = _mm256_set_m128i(_mm_unpackhi_epi32(front, back), _mm_unpacklo_epi32(front, back));
  return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(all), 16);
}

// Of four vectors the sums of four adjacent lanes: lane 4 * g + o is that of lanes 4 * g to 4 * g + 3 of vector o.
inline __m512i add_fours(const __m512i *v) {
  __m512i front = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  __m512i back = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(front, back), _mm512_unpackhi_epi64(front, back));
}

template <bool ZEROS, int M>
inline __attribute__((always_inline)) void unit_sums(const Outputs &a, int64_t unit, int64_t groups, const Unit *const *xs, __m512 *sums) {
  const __m512i low = _mm512_set1_epi8(15);
  __mmask64 some = groups == 4 ? ~0ull : (1ull << 16 * groups) - 1;
  __m512i first[OUTS], second[OUTS];
#pragma GCC unroll 4
  for (int o = 0; o < OUTS; o++) {
    const uint8_t *from = a.weights[o] + unit * 64;
    fetch(a.weights[0] + AHEAD + 64 * (OUTS * unit + o));  // in the order of the memory: outputs follow each other
    __m512i bytes = groups == 4 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(some, from);
    first[o] = _mm512_and_si512(bytes, low);
    second[o] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
  }
  __m512 scales = unit_scales(a.scales, unit * 4, groups), shares = scales;
  if (ZEROS) shares = (__m512)zero_shares((Floats)unit_scales(a.zeros, unit * 4, groups));
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    const Unit &x = xs[m][unit];
    __m512i front = _mm512_load_si512(x.first), back = _mm512_load_si512(x.second), begin = _mm512_load_si512(x.begin), v[OUTS];
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++) v[o] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(begin, first[o], front), second[o], back);
    __m512 total = _mm512_cvtepi32_ps(add_fours(v));
    if (ZEROS) {
      const __m512i begins[OUTS] = {begin, begin, begin, begin};
      total = _mm512_fmadd_ps(shares, _mm512_cvtepi32_ps(add_fours(begins)), total);
    }
    sums[m] = _mm512_fmadd_ps(total, _mm512_mul_ps(scales, _mm512_load_ps(x.scales)), sums[m]);
  }
}

// out[m * OUTS + o]
template <bool ZEROS, int M>
__attribute__((noinline)) void int4_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  const Unit *const *xs = (const Unit *const *)rows;
  __m512 sums[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) sums[m] = _mm512_setzero_ps();
  int64_t whole = size / UNIT;
  for (int64_t unit = 0; unit < whole; unit++) unit_sums<ZEROS, M>(a, unit, 4, xs, sums);
  if (size % UNIT) unit_sums<ZEROS, M>(a, whole, size % UNIT / 32, xs, sums);
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) write(out + m * OUTS, fold((Floats)sums[m]));
}

template <int M>
__attribute__((noinline)) void int8_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  const __m512i sign = _mm512_set1_epi8((char)0x80);
  __m512i sums[M][OUTS];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++) sums[m][o] = _mm512_setzero_si512();
  for (int64_t i = 0; i < size; i += 64) {
    __mmask64 some = size - i >= 64 ? ~0ull : (1ull << (size - i)) - 1;
    __m512i weights[OUTS];
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++) {
      fetch(a.weights[0] + AHEAD + OUTS * i + 64 * o);
      weights[o] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(some, a.weights[o] + i), sign);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      __m512i x = _mm512_load_si512(((const ByteRow *)rows[m])->bytes() + i);
#pragma GCC unroll 4
      for (int o = 0; o < OUTS; o++) sums[m][o] = _mm512_dpbusd_epi32(sums[m][o], weights[o], x);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    const ByteRow *x = (const ByteRow *)rows[m];
    __m512i fours = add_fours(sums[m]);
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
    __m128i total = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    _mm_storeu_ps(out + m * OUTS, _mm_mul_ps(_mm_cvtepi32_ps(_mm_add_epi32(total, _mm_set1_epi32(x->begin))), _mm_set1_ps(x->scale)));
  }
}
#elif WIDTH >= 8
// Processors with vectors of 512 bits and no such instructions use 256 bits here.
// Half a unit: two groups. Lanes are as in a unit of 512 bits, and sums in the same order.
inline __m256 half_scales(const bf16 *const *from, int64_t group, int64_t groups) {
  uint32_t two[OUTS] = {};
#pragma GCC unroll 4
  for (int o = 0; o < OUTS; o++) memcpy(&two[o], from[o] + group, groups > 1 ? 4 : 2);
  __m128i front = _mm_unpacklo_epi16(_mm_cvtsi32_si128((int)two[0]), _mm_cvtsi32_si128((int)two[1]));
  __m128i back = _mm_unpacklo_epi16(_mm_cvtsi32_si128((int)two[2]), _mm_cvtsi32_si128((int)two[3]));
  return (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpacklo_epi32(front, back)), 16);
}

// Of four vectors the sums of four adjacent lanes, as of 512 bits.
inline __m256i add_half_fours(const __m256i *v) {
  __m256i even = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
  __m256i odd = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
  return _mm256_add_epi32(_mm256_unpacklo_epi64(even, odd), _mm256_unpackhi_epi64(even, odd));
}

template <bool ZEROS, int M>
inline __attribute__((always_inline)) void half_sums(const Outputs &a, int64_t half, int64_t groups, const Unit *const *xs, __m256 *sums) {
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  int64_t at = half % 2 * 32;
  __m256i first[OUTS], second[OUTS];
#pragma GCC unroll 4
  for (int o = 0; o < OUTS; o++) {
    const uint8_t *from = a.weights[o] + half * 32;
    if (o % 2 == 0) fetch(a.weights[0] + AHEAD + OUTS * 32 * half + 32 * o);
    __m256i bytes = groups > 1 ? _mm256_loadu_si256((const __m256i *)from) : _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)from));
    first[o] = _mm256_and_si256(bytes, low);
    second[o] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
  }
  __m256 scales = half_scales(a.scales, half * 2, groups), shares = scales;
  if (ZEROS) shares = zero_shares(half_scales(a.zeros, half * 2, groups));
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
    const Unit &x = xs[m][half / 2];
    __m256i front = _mm256_loadu_si256((const __m256i *)(x.first + at)), back = _mm256_loadu_si256((const __m256i *)(x.second + at)), v[OUTS];
    __m256i begin = _mm256_loadu_si256((const __m256i *)(x.begin + at / 4));
#pragma GCC unroll 4
    for (int o = 0; o < OUTS; o++)  // pairs of products of at most 15 and 127 fit into 16 bits
      v[o] = _mm256_add_epi32(begin, _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(first[o], front), _mm256_maddubs_epi16(second[o], back)), ones));
    __m256 total = _mm256_cvtepi32_ps(add_half_fours(v));
    if (ZEROS) {
      const __m256i begins[OUTS] = {begin, begin, begin, begin};
      total = _mm256_fmadd_ps(shares, _mm256_cvtepi32_ps(add_half_fours(begins)), total);
    }
    sums[m] = _mm256_fmadd_ps(total, _mm256_mul_ps(scales, _mm256_loadu_ps(x.scales + at / 4)), sums[m]);
  }
}

template <bool ZEROS, int M>
__attribute__((noinline)) void int4_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  const Unit *const *xs = (const Unit *const *)rows;
  __m256 sums[2][M];  // of the first and the second halves of units
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) sums[0][m] = sums[1][m] = _mm256_setzero_ps();
  int64_t groups = size / 32, half = 0;
  for (; 2 * half + 4 <= groups; half += 2) {
    half_sums<ZEROS, M>(a, half, 2, xs, sums[0]);
    half_sums<ZEROS, M>(a, half + 1, 2, xs, sums[1]);
  }
  for (int i = 0; 2 * half < groups; half++, i++) half_sums<ZEROS, M>(a, half, groups - 2 * half, xs, sums[i]);
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
    __m256 total = _mm256_add_ps(sums[0][m], sums[1][m]);
    _mm_storeu_ps(out + m * OUTS, _mm_add_ps(_mm256_castps256_ps128(total), _mm256_extractf128_ps(total, 1)));
  }
}

// Sums of pairs of products fit into 16 bits: the inputs, at most 127, take the signs of the weights, whose magnitudes are at most 128.
template <int M, int S>
inline __attribute__((always_inline)) void byte_sums(const __m256i *weights, int64_t i, const void *const *rows, __m256i (*sums)[S]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int o = 0; o < S; o++) {
    __m256i magnitudes = _mm256_abs_epi8(weights[o]);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      __m256i x = _mm256_load_si256((const __m256i *)(((const ByteRow *)rows[m])->bytes() + i));
      __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, weights[o]));
      sums[m][o] = _mm256_add_epi32(sums[m][o], _mm256_madd_epi16(pairs, ones));
    }
  }
}

template <int M>
__attribute__((noinline)) void int8_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  constexpr int S = M > 2 ? 2 : OUTS;  // outputs side by side, as the registers hold
  __m256i totals[M][OUTS];
#pragma GCC unroll 2
  for (int first = 0; first < OUTS; first += S) {
    __m256i sums[M][S], weights[S];
#pragma GCC unroll 16
    for (int n = 0; n < M * S; n++) sums[n / S][n % S] = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 32 <= size; i += 32) {
#pragma GCC unroll 4
      for (int o = 0; o < S; o++) {
        if (o % 2 == 0) fetch(a.weights[first] + AHEAD + S * i + 32 * o);
        weights[o] = _mm256_loadu_si256((const __m256i *)(a.weights[first + o] + i));
      }
      byte_sums<M, S>(weights, i, rows, sums);
    }
    if (i < size) {
      for (int o = 0; o < S; o++) {
        uint8_t part[32] = {};
        memcpy(part, a.weights[first + o] + i, size - i);
        weights[o] = _mm256_loadu_si256((const __m256i *)part);
      }
      byte_sums<M, S>(weights, i, rows, sums);
    }
#pragma GCC unroll 16
    for (int n = 0; n < M * S; n++) totals[n / S][first + n % S] = sums[n / S][n % S];
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
    const __m256i *v = totals[m];
    __m256i fours = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m128i total = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    _mm_storeu_ps(out + m * OUTS, _mm_mul_ps(_mm_cvtepi32_ps(total), _mm_set1_ps(((const ByteRow *)rows[m])->scale)));
  }
}
#else
// The same sums for processors without such instructions, and in the same order.
template <bool ZEROS, int M>
__attribute__((noinline)) void int4_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  for (int m = 0; m < M; m++) {
    const Unit *x = (const Unit *)rows[m];
    for (int o = 0; o < OUTS; o++) {
      float sums[4] = {};
      for (int64_t g = 0; g < size / 32; g++) {
        const Unit &u = x[g / 4];
        int64_t at = g % 4;
        const uint8_t *bytes = a.weights[o] + g * 16;
        int32_t begin = 0, sum = 0;
        for (int i = 0; i < 4; i++) begin += u.begin[at * 4 + i];
        for (int i = 0; i < 16; i++) sum += (bytes[i] & 15) * u.first[at * 16 + i] + (bytes[i] >> 4) * u.second[at * 16 + i];
        float total = (float)(begin + sum);
        if (ZEROS) total += zero_shares(widen(a.zeros[o][g])) * (float)begin;
        sums[at] += total * (widen(a.scales[o][g]) * u.scales[at * 4]);
      }
      out[m * OUTS + o] = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    }
  }
}

template <int M>
__attribute__((noinline)) void int8_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  for (int m = 0; m < M; m++) {
    const ByteRow *x = (const ByteRow *)rows[m];
    const int8_t *bytes = x->bytes();
    for (int o = 0; o < OUTS; o++) {
      const int8_t *weights = (const int8_t *)a.weights[o];
      int32_t sum = 0;
      for (int64_t i = 0; i < size; i++) sum += (int32_t)weights[i] * bytes[i];
      out[m * OUTS + o] = (float)sum * x->scale;
    }
  }
}
#endif

// The blocks of one kind of products, by the number of rows. out[row * OUTS + output]
typedef void (*RowsBlock)(const Outputs &a, int64_t size, const void *const *rows, float *out);
constexpr RowsBlock INT4_BLOCKS[] = {nullptr, int4_block<false, 1>, int4_block<false, 2>, int4_block<false, 3>, int4_block<false, 4>};
constexpr RowsBlock ZERO_POINT_BLOCKS[] = {nullptr, int4_block<true, 1>, int4_block<true, 2>, int4_block<true, 3>, int4_block<true, 4>};
constexpr RowsBlock INT8_BLOCKS[] = {nullptr, int8_block<1>, int8_block<2>, int8_block<3>, int8_block<4>};

inline bool multiplies_integers(const omni_matrix &a) { return a.int8_inputs != 0; }

// OUTS outputs from `output` on; `end` is after the last of the matrix or of a thread.
inline Outputs outputs_of(const omni_matrix &a, int64_t output, int64_t end) {
  int64_t bytes = a.kind == OMNI_INT4 ? a.in / 2 : a.in, groups = a.in / 32 * (a.zero_points ? 2 : 1);
  Outputs made;
  for (int r = 0; r < OUTS; r++, output += output + 1 < end) {
    made.weights[r] = (const uint8_t *)a.weight + output * bytes;
    made.scales[r] = (const bf16 *)a.group_scales + output * groups;
    made.zeros[r] = a.zero_points ? made.scales[r] + a.in / 32 : nullptr;
  }
  return made;
}

// Calls emit(row, output, value) for `rows` rows from `row` on and OUTS outputs from `output` on that are before `end`, whose sums are `out`.
template <class Emit>
inline void emit_outputs(const omni_matrix &a, const float *out, int row, int rows, int64_t output, int64_t end, Emit emit) {
  for (int r = 0; r < OUTS && output + r < end; r++) {
    float scale = a.scales ? a.scales[output + r] : 1.0f, bias = a.bias ? a.bias[output + r] : 0.0f;
    for (int m = 0; m < rows; m++)
      emit(row + m, output + r, a.scales || a.bias ? out[m * OUTS + r] * scale + bias : out[m * OUTS + r]);
  }
}

// The same for all rows, whose sums are by fours of rows: of each four [OUTS][rows].
template <class Emit>
inline void emit_sums(const omni_matrix &a, const Floats *sums, int rows, int64_t output, int64_t end, Emit emit) {
  for (int row = 0; row < rows; row += 4) {
    int some = rows - row < 4 ? rows - row : 4;
    float out[4 * OUTS];
    for (int r = 0; r < OUTS; r++)
      for (int m = 0; m < some; m++) out[m * OUTS + r] = sum(sums[row * OUTS + r * some + m]);
    emit_outputs(a, out, row, some, output, end, emit);
  }
}

// Calls emit(row, output, value) for the outputs from `begin` to `end` of every row. `xs`: rows as `blocks` read them.
template <class Emit>
inline void outputs_product(const RowsBlock *blocks, const omni_matrix &a, const void *const *xs, int rows, int64_t begin, int64_t end, Emit emit) {
  for (int64_t o = begin; o < end; o += OUTS) {
    Outputs outputs = outputs_of(a, o, end);
    for (int row = 0; row < rows; row += 4) {
      int some = rows - row < 4 ? rows - row : 4;
      float out[4 * OUTS];
      blocks[some](outputs, a.in, xs + row, out);
      emit_outputs(a, out, row, some, o, end, emit);
    }
  }
}

// As outputs_product(); rows are as prepare_units() or prepare_bytes() makes them.
template <class Emit>
inline void integer_product(const omni_matrix &a, const void *const *xs, int rows, int64_t begin, int64_t end, Emit emit) {
  outputs_product(a.kind != OMNI_INT4 ? INT8_BLOCKS : a.zero_points ? ZERO_POINT_BLOCKS : INT4_BLOCKS, a, xs, rows, begin, end, emit);
}

}  // namespace
