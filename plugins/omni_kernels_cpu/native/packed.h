// Products of many rows: a vector holds one output of W rows, so that a sum needs no addition across lanes, and a row's result depends
// neither on its lane nor on the other rows. Rows are packed for it; the matrix is read row-major, where it is.
//
// Elements are moved as 32-bit words: a float, or a pair of bfloat16 where the processor multiplies pairs. Where it multiplies tiles of
// bfloat16, floats are split into three numbers of that kind, whose products add up to float32's: see split_pairs().
#pragma once
#include "interface.h"
#include "team.h"
#include "vector.h"

#if defined(__AVX512BF16__)
#define PAIRS 1
#else
#define PAIRS 0
#endif
#if defined(__AMX_BF16__)
#define TILES 1
#else
#define TILES 0
#endif
#if WIDTH >= 8 && !PAIRS
#define INTEGER_LANES 1
#else
#define INTEGER_LANES 0
#endif

namespace {

constexpr int64_t PANEL = WIDTH == 8 ? 48 : 32;  // outputs whose weights are in the caches while all rows pass
constexpr int64_t UNITS = PANEL / 2;             // units of a feed-forward block whose gates and ups make a panel
constexpr int64_t TURNS = 2 * 2 * 4 * 256;       // words of two turns of tiles, see turn_sums()
constexpr int64_t GROUP = 32;  // inputs that share a scale of weights in groups; inputs are padded with zeros to a multiple of it

constexpr int64_t VECTORS = -1;    // a kind of inputs and weights: floats that are multiplied as vectors, whatever the processor has
constexpr int64_t SPLIT = 3;       // numbers in bfloat16 that a float is split into
constexpr int64_t TILE_WORDS = 16 * 16;  // of 16 rows with 32 numbers in bfloat16

// Whether inputs are floats that are not rounded.
inline bool of_floats(int64_t kind) { return kind == OMNI_FLOAT32 || kind == OMNI_FLOAT32_HALVES || kind == VECTORS; }

// Whether inputs are floats that are split.
inline bool in_parts(int64_t kind) { return TILES && of_floats(kind) && kind != VECTORS; }

// Whether a processor with tiles widens or splits weights for each product of few rows, while it multiplies.
inline bool in_turns(int64_t kind) { return kind == OMNI_FLOAT32 || (kind >= OMNI_INT8 && kind != OMNI_FLOAT32_HALVES); }

inline bool in_pairs(int64_t kind) { return PAIRS && !of_floats(kind); }

// Words of one row with `size` elements.
inline int64_t words_of(int64_t kind, int64_t size) {
  int64_t padded = of_floats(kind) && !in_parts(kind) ? size : (size + GROUP - 1) / GROUP * GROUP;
  return in_parts(kind) ? padded / 2 * SPLIT : in_pairs(kind) ? padded / 2 : padded;
}

// Words of one output of a panel with `size` inputs.
inline int64_t weight_words(int64_t kind, int64_t size) { return words_of(in_parts(kind) && kind != OMNI_FLOAT32 ? (int64_t)OMNI_BFLOAT16 : kind, size); }

inline int64_t blocks_of_rows(int64_t rows) { return (rows + W - 1) / W; }

// Rows in blocks of W, each [words, W].
struct Lanes {
  const uint32_t *words;
  int64_t rows, steps;  // `steps`: words of a row
  inline const uint32_t *block(int64_t number) const { return words + number * steps * W; }
};

#if WIDTH == 16
inline void transpose(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {  // a quarter of r[4 * i + j] holds a column of rows 4 * i to 4 * i + 3
    __m512i even = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), odd = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    __m512i even_after = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88), odd_after = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_i32x4(even, even_after, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(even, even_after, 0xdd);
    t[4 + j] = _mm512_shuffle_i32x4(odd, odd_after, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(odd, odd_after, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) r[i] = t[i];
}
#endif

#if WIDTH == 8
inline void transpose(__m256 r[8]) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {  // a half of r[i + j] holds a column of rows i to i + 3
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
      r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    t[j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
    t[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) r[i] = t[i];
}
#endif

#if PAIRS
// Two halves of a vector in turn, lane by lane.
inline Words lane_pairs(__m512i halves) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                         17, 1, 16, 0);
  return (Words)_mm512_permutexvar_epi16(order, halves);
}

inline Words pair(Floats low, Floats high) { return lane_pairs((__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low)); }

inline __m512i pairs_of(const float *from) {  // 32 floats in their order
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
}
#endif

#if TILES
// 32 floats in their order as the sums of SPLIT numbers in bfloat16, each the nearest one of what is left: 24 bits in all, so that nothing is lost
// of a float between 2^-110 and bfloat16's largest number. Infinity, and what is above that number, is not a number then.
inline __attribute__((always_inline)) void split_pairs(__m512 low, __m512 high, __m512i *parts) {
  auto rounded = [](__m512 v) {  // halves away from zero
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(0x8000)), _mm512_set1_epi32((int)0xffff0000)));
  };
#pragma GCC unroll 3
  for (int i = 0; i < SPLIT; i++) {
    __m512 first = i + 1 < SPLIT ? rounded(low) : low, second = i + 1 < SPLIT ? rounded(high) : high;
    parts[i] = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    low = _mm512_sub_ps(low, first);
    high = _mm512_sub_ps(high, second);
  }
}

inline __attribute__((always_inline)) void split_pairs(const float *row, int64_t size, int64_t element, __m512i *parts) {  // zeros after the end of the row
  split_pairs(element < size ? (__m512)load_at(row, element, size) : _mm512_setzero_ps(),
              element + 16 < size ? (__m512)load_at(row, element + 16, size) : _mm512_setzero_ps(), parts);
}

inline __m512i halves_at(const bf16 *row, int64_t size, int64_t element) {  // 32 of them, zeros after the end of the row
  if (element + 32 <= size) return _mm512_loadu_si512(row + element);
  __m512i v = _mm512_setzero_si512();
  memcpy(&v, row + element, (size - element) * sizeof(bf16));
  return v;
}

// As pack_block(), of rows that are split: [32 inputs][SPLIT][16 words][W].
inline void pack_parts(const float *const *rows, int64_t count, int64_t size, uint32_t *to) {
  for (int64_t element = 0; element < size; element += 32, to += SPLIT * TILE_WORDS) {
    __m512i parts[16][SPLIT];
    for (int64_t i = 0; i < count; i++) split_pairs(rows[i], size, element, parts[i]);
#pragma GCC unroll 3
    for (int part = 0; part < SPLIT; part++) {
      __m512i v[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) v[i] = i < count ? parts[i][part] : _mm512_setzero_si512();
      transpose(v);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) _mm512_store_si512(to + part * TILE_WORDS + i * 16, v[i]);
    }
  }
}
#endif

// The words of a row from `word` on, W of them: zeros after its end.
inline Words row_words(int64_t kind, const float *row, int64_t size, int64_t word) {
#if PAIRS
  if (!of_floats(kind)) {
    if (2 * word + 32 <= size) return (Words)pairs_of(row + 2 * word);
    float part[32] = {};
    if (2 * word < size) memcpy(part, row + 2 * word, (size - 2 * word) * sizeof(float));
    return (Words)pairs_of(part);
  }
#endif
  if (word >= size) return Words{};
  Floats v = load_at(row, word, size);
  return (Words)(of_floats(kind) ? v : rounded(v));
}

#if WIDTH == 16
inline __m512i whole_words(int64_t kind, const float *row, int64_t word) {
#if PAIRS
  if (!of_floats(kind)) return pairs_of(row + 2 * word);
#endif
  Floats v = read<Floats>(row + word);
  return (__m512i)(of_floats(kind) ? v : rounded(v));
}
#endif

// Packs up to W rows with `size` floats as a block.
inline void pack_block(int64_t kind, const float *const *rows, int64_t count, int64_t size, uint32_t *to) {
#if TILES
  if (in_parts(kind)) return pack_parts(rows, count, size, to);
#endif
  int64_t steps = words_of(kind, size);
  for (int64_t word = 0; word < steps; word += W) {
    int64_t most = steps - word < W ? steps - word : W;
#if WIDTH == 16
    __m512i v[16];
    if (count == 16 && (in_pairs(kind) ? 2 : 1) * (word + 16) <= size) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) v[i] = whole_words(kind, rows[i], word);
    } else {
      for (int i = 0; i < 16; i++) v[i] = i < count ? (__m512i)row_words(kind, rows[i], size, word) : _mm512_setzero_si512();
    }
    transpose(v);
    if (most == 16) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) _mm512_store_si512(to + (word + i) * 16, v[i]);
    } else {
      for (int i = 0; i < most; i++) _mm512_store_si512(to + (word + i) * 16, v[i]);
    }
#elif WIDTH == 8
    __m256 v[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) v[i] = i < count ? (__m256)row_words(kind, rows[i], size, word) : _mm256_setzero_ps();
    transpose(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
      if (i < most) _mm256_storeu_ps((float *)to + (word + i) * 8, v[i]);
#else
    for (int64_t i = 0; i < W; i++) {
      Words v = i < count ? row_words(kind, rows[i], size, word) : Words{};
      for (int64_t k = 0; k < most; k++) to[(word + k) * W + i] = v[k];
    }
#endif
  }
}

}  // namespace
