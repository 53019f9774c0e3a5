// Products of many rows with narrow weights and inputs in 8 bits, bit for bit those of decode steps (integers.h). As in packed.h a vector holds
// one output of W rows; the inputs of a row are two or four to a word. Where pairs of bfloat16 are multiplied, which is as fast, prompts keep these.
#pragma once
#include "integers.h"
#include "lanes.h"

namespace {

// Whether prompts multiply a matrix as integers.
inline bool in_integers(const omni_matrix &a) { return INTEGER_LANES && multiplies_integers(a); }

#if INTEGER_LANES
#if WIDTH == 16
typedef __m512i Integers, Vector;
typedef Vector Vectors[16];
inline Integers same_words(uint32_t word) { return _mm512_set1_epi32((int)word); }
inline Integers add_pairs(Integers halves) { return _mm512_madd_epi16(halves, _mm512_set1_epi16(1)); }
inline Integers multiply_bytes(Integers a, Integers b) { return _mm512_maddubs_epi16(a, b); }  // unsigned by signed, and add each pair
inline Integers add_halves(Integers a, Integers b) { return _mm512_add_epi16(a, b); }
inline Integers times_minus_8(Integers halves) { return _mm512_slli_epi16(_mm512_sub_epi16(_mm512_setzero_si512(), halves), 3); }
inline Vector widened_pairs(const int8_t *from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)from)); }
inline Vector both_halves(const int8_t *first, const int8_t *second) {
  return _mm512_zextsi256_si512(_mm256_set_m128i(_mm_loadu_si128((const __m128i *)second), _mm_loadu_si128((const __m128i *)first)));
}
#else
typedef __m256i Integers;
typedef __m256 Vector;
typedef Vector Vectors[8];
inline Integers same_words(uint32_t word) { return _mm256_set1_epi32((int)word); }
inline Integers add_pairs(Integers halves) { return _mm256_madd_epi16(halves, _mm256_set1_epi16(1)); }
inline Integers multiply_bytes(Integers a, Integers b) { return _mm256_maddubs_epi16(a, b); }
inline Integers add_halves(Integers a, Integers b) { return _mm256_add_epi16(a, b); }
inline Integers times_minus_8(Integers halves) { return _mm256_slli_epi16(_mm256_sub_epi16(_mm256_setzero_si256(), halves), 3); }
inline Vector widened_pairs(const int8_t *from) { return (Vector)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from)); }
inline Vector both_halves(const int8_t *first, const int8_t *second) {
  return (Vector)_mm256_set_m128i(_mm_loadu_si128((const __m128i *)second), _mm_loadu_si128((const __m128i *)first));
}
#endif

// Of 8-bit weights, a packed row is its scale, and then pairs of inputs in 16 bits. Of 4-bit weights it is, for each 32 inputs, eight fours of
// bytes, what makes up for weights that are stored plus 8 (as two halves: sums of the first and of the last two bytes of fours), and the scale.
constexpr int64_t GROUP_WORDS = 10, FOURS = 8;
// A widened row of 4-bit weights: for each 32 inputs, their bytes and the scale, and of those with zero points zero_shares().
constexpr int64_t group_weights(bool zeros) { return zeros ? 10 : 9; }

inline Floats inverses_of(Floats scales) { return scales > 0 ? 1.0f / scales : Floats{}; }  // 0 of zeros and of NaN

// The scales of W rows: see integer_scale().
inline Floats integer_scales(const uint32_t *words, int64_t size) {
  Floats most = {}, odd = {};
  for (int64_t i = 0; i < size; i++) {
    Floats v = read<Floats>(words + i * W), magnitude = v < 0 ? -v : v;
    most = magnitude > most ? magnitude : most;
    odd += v - v;
  }
  return most / 127 + odd;
}

// Rounds a block of W rows of floats, [size][W], in place.
inline void round_block(int64_t kind, int64_t size, uint32_t *block) {
  if (kind == OMNI_INT8) {
    Floats scales = integer_scales(block, size), inverses = inverses_of(scales);
    for (int64_t i = 0; i < size; i += 2) {
      Ints low = nearest(read<Floats>(block + i * W), inverses), high = i + 1 < size ? nearest(read<Floats>(block + (i + 1) * W), inverses) : Ints{};
      if (i == 0) write(block, scales);
      write(block + (i / 2 + 1) * W, (low & 0xffff) | (high << 16));
    }
    return;
  }
  uint32_t *to = block;
  for (int64_t g = 0; g < size; g += GROUP, to += GROUP_WORDS * W) {
    Floats scales = integer_scales(block + g * W, GROUP), inverses = inverses_of(scales);
    Ints first = {}, last = {};
    for (int64_t four = 0; four < FOURS; four++) {
      Ints v[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) v[i] = nearest(read<Floats>(block + (g + 4 * four + i) * W), inverses);
      first += v[0] + v[1];
      last += v[2] + v[3];
      write(to + four * W, (v[0] & 255) | (v[1] & 255) << 8 | (v[2] & 255) << 16 | v[3] << 24);
    }
    write(to + FOURS * W, (-8 * first & 0xffff) | (-8 * last << 16));
    write(to + (FOURS + 1) * W, scales);
  }
}

inline void widen_pairs(const int8_t *from, int64_t size, int16_t *to) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) _mm256_storeu_si256((__m256i *)(to + i), _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(from + i))));
  for (; i < size; i++) to[i] = from[i];
  if (size % 2) to[size] = 0;
}

inline void widen_fours(const uint8_t *from, const bf16 *scales, const bf16 *zeros, int64_t size, uint32_t *to) {
  const __m128i low = _mm_set1_epi8(15);
  for (int64_t g = 0; g < size / GROUP; g++, from += 16, to += group_weights(zeros)) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)from);
    _mm_storeu_si128((__m128i *)to, _mm_and_si128(bytes, low));
    _mm_storeu_si128((__m128i *)(to + 4), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    to[FOURS] = (uint32_t)scales[g] << 16;
    if (zeros) write(to + FOURS + 1, zero_shares(widen(zeros[g])));
  }
}

inline Panel integer_panel(const omni_matrix &a, int64_t output, int64_t count, uint32_t *buffer) {
  int64_t groups = a.in / GROUP, stride = a.kind == OMNI_INT8 ? (a.in + 1) / 2 : groups * group_weights(a.zero_points);
  for (int64_t o = output; o < output + count; o++) {
    uint32_t *to = buffer + (o - output) * stride;
    if (a.kind == OMNI_INT8)
      widen_pairs((const int8_t *)a.weight + o * a.in, a.in, (int16_t *)to);
    else {
      const bf16 *scales = (const bf16 *)a.group_scales + o * groups * (a.zero_points ? 2 : 1);
      widen_fours((const uint8_t *)a.weight + o * a.in / 2, scales, a.zero_points ? scales + groups : nullptr, a.in, to);
    }
  }
  return {buffer, stride};
}

// Adds the sums of OUTS outputs of 4-bit weights for V blocks of rows to c[4][PANEL][2 * W]: of group number n to c[n % 4], or of the first four sets it. `next`, `lines`: as
// lane_sums() has them, for each group.
template <bool ZEROS, int OUTS, int V>
__attribute__((noinline)) const char *group_sums(const uint32_t *a, int64_t stride, const uint32_t *x, int64_t block, int64_t first, int64_t groups,
                                                 float *c, const char *next, int64_t lines) {
  constexpr int BASES = (OUTS + 2) / 3;
  const char *bases[BASES];
  int64_t row = stride * (int64_t)sizeof(uint32_t);
#pragma GCC unroll 4
  for (int b = 0; b < BASES; b++) bases[b] = (const char *)a + 3 * b * row;
  for (int64_t g = first; g < first + groups; g++, x += GROUP_WORDS * W) {
    for (int64_t line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, 2);
    Integers sums[OUTS][V];
#pragma GCC unroll 16
    for (int o = 0; o < OUTS; o++)
#pragma GCC unroll 2
      for (int i = 0; i < V; i++) sums[o][i] = read<Integers>(x + i * block + FOURS * W);
#pragma GCC unroll 8
    for (int64_t four = 0; four < FOURS; four++) {
      Integers v[V];
#pragma GCC unroll 2
      for (int i = 0; i < V; i++) v[i] = read<Integers>(x + i * block + four * W);
#pragma GCC unroll 16
      for (int o = 0; o < OUTS; o++) {  // no sum of 16 products of at most 7 or -8 and 127 needs more than 16 bits
        Integers weights = same_words(read<uint32_t>(bases[o / 3] + o % 3 * row + 4 * four));
#pragma GCC unroll 2
        for (int i = 0; i < V; i++) {
          sums[o][i] = add_halves(sums[o][i], multiply_bytes(weights, v[i]));
          __asm__("" : "+v"(sums[o][i]));  // compilers would add in another order, for which the registers do not suffice
        }
      }
    }
    float *to = c + g % 4 * PANEL * 2 * W;
    Floats begins[V];
#pragma GCC unroll 2
    for (int i = 0; ZEROS && i < V; i++) begins[i] = __builtin_convertvector((Ints)add_pairs(read<Integers>(x + i * block + FOURS * W)), Floats);
#pragma GCC unroll 16
    for (int o = 0; o < OUTS; o++) {
      Floats scale = broadcast(read<float>(bases[o / 3] + o % 3 * row + 4 * FOURS)), share = scale;
      if (ZEROS) share = broadcast(read<float>(bases[o / 3] + o % 3 * row + 4 * (FOURS + 1)));
#pragma GCC unroll 2
      for (int i = 0; i < V; i++) {
        float *at = to + o * 2 * W + i * W;
        Floats sum = __builtin_convertvector((Ints)add_pairs(sums[o][i]), Floats);
        if (ZEROS) sum += share * begins[i];
        write(at, (g < 4 ? Floats{} : read<Floats>(at)) + sum * (scale * read<Floats>(x + i * block + (FOURS + 1) * W)));
      }
    }
#pragma GCC unroll 4
    for (int b = 0; b < BASES; b++) bases[b] += 4 * group_weights(ZEROS);
  }
  return next;
}

// Outputs at once: additions of integers do not wait for each other long.
template <int V>
constexpr int MANY_GROUPS = (WIDTH == 16 ? 16 : 8) / V;
template <int V>
inline int64_t group_outs(int64_t left) {
  return left >= MANY_GROUPS<V> ? MANY_GROUPS<V> : left >= 4 ? 4 : 1;
}

constexpr int64_t SOME_GROUPS = 16;  // of two blocks of rows, that stay in the first cache while all outputs of a panel pass

template <bool ZEROS, int V>
__attribute__((noinline)) void group_panel(const uint32_t *a, int64_t stride, int64_t count, const uint32_t *x, int64_t block, int64_t groups, float *c,
                                           const char *next, int64_t bytes) {
  __attribute__((aligned(64))) float parts[4][PANEL * 2 * W];
  for (int64_t part = groups; part < 4; part++) memset(parts[part], 0, count * 2 * W * sizeof(float));
  int64_t turns = 0;
  for (int64_t o = 0; next && o < count; o += group_outs<V>(count - o)) turns += groups;
  int64_t lines = turns ? (bytes / 64 + turns - 1) / turns : 0;
  for (int64_t g = 0; g < groups; g += SOME_GROUPS) {
    int64_t some = groups - g < SOME_GROUPS ? groups - g : SOME_GROUPS;
    for (int64_t o = 0, outs; o < count; o += outs) {
      outs = group_outs<V>(count - o);
      auto sums = outs == MANY_GROUPS<V> ? group_sums<ZEROS, MANY_GROUPS<V>, V> : outs == 4 ? group_sums<ZEROS, 4, V> : group_sums<ZEROS, 1, V>;
      next = sums(a + o * stride + g * group_weights(ZEROS), stride, x + g * GROUP_WORDS * W, block, g, some, parts[0] + o * 2 * W, next, lines);
    }
  }
  for (int64_t o = 0; o < count; o++)
    for (int64_t i = 0; i < V; i++) {
      Floats part[4];
      for (int n = 0; n < 4; n++) part[n] = read<Floats>(parts[n] + o * 2 * W + i * W);
      write(c + o * 2 * W + i * W, (part[0] + part[2]) + (part[1] + part[3]));
    }
}

template <int V>
inline void pair_panel(const Panel &p, int64_t count, const uint32_t *x, int64_t block, int64_t size, float *c, const char *next, int64_t bytes) {
  lane_panel<false, V, Ints, Words>(p.words, p.stride, count, x + W, block, (size + 1) / 2, c, next, bytes);
  for (int64_t o = 0; o < count; o++)
    for (int64_t i = 0; i < V; i++) {
      float *at = c + o * 2 * W + i * W;
      write(at, __builtin_convertvector(read<Ints>(at), Floats) * read<Floats>(x + i * block));
    }
}

// As panel_sums(), of a panel of integer_panel() and of blocks that are rounded.
inline void integer_sums(const omni_matrix &a, const Panel &p, int64_t count, const uint32_t *x, int64_t block, int64_t rows, float *c, const char *next,
                         int64_t bytes) {
  if (a.kind == OMNI_INT8)
    (rows > W ? pair_panel<2> : pair_panel<1>)(p, count, x, block, a.in, c, next, bytes);
  else if (a.zero_points)
    (rows > W ? group_panel<true, 2> : group_panel<true, 1>)(p.words, p.stride, count, x, block, a.in / GROUP, c, next, bytes);
  else
    (rows > W ? group_panel<false, 2> : group_panel<false, 1>)(p.words, p.stride, count, x, block, a.in / GROUP, c, next, bytes);
}

// A block of rows as prepare_units() or prepare_bytes() make them.
inline void pack_integers(int64_t kind, int64_t size, const void *const *rows, int64_t count, uint32_t *to) {
  Vectors v;
  auto turn = [&](uint32_t *words, int64_t most, auto load) {
    for (int64_t i = 0; i < W; i++) v[i] = i < count ? load(rows[i]) : Vector{};
    transpose(v);
    for (int64_t i = 0; i < most; i++) write(words + i * W, v[i]);
  };
  if (kind == OMNI_INT8) {
    for (int64_t i = 0; i < W; i++) ((float *)to)[i] = i < count ? ((const ByteRow *)rows[i])->scale : 0;
    int64_t pairs = (size + 1) / 2;
    for (int64_t i = 0; i < pairs; i += W)
      turn(to + (i + 1) * W, pairs - i < W ? pairs - i : W, [&](const void *row) { return widened_pairs(((const ByteRow *)row)->bytes() + 2 * i); });
    return;
  }
  for (int64_t g = 0; g < size / GROUP; g++, to += GROUP_WORDS * W) {
    int64_t at = g % 4;
    turn(to, FOURS, [&](const void *row) {
      const Unit &u = ((const Unit *)row)[g / 4];
      return both_halves(u.first + at * 16, u.second + at * 16);
    });
    Integers sums{};
    for (int64_t four = 0; four < FOURS; four++) sums = add_halves(sums, multiply_bytes(same_words(0x01010101), read<Integers>(to + four * W)));
    write(to + FOURS * W, times_minus_8(sums));
    for (int64_t i = 0; i < W; i++) ((float *)to)[(FOURS + 1) * W + i] = i < count ? ((const Unit *)rows[i])[g / 4].scales[at * 4] : 0;
  }
}
#else
inline void round_block(int64_t, int64_t, uint32_t *) {}
#endif

}  // namespace
