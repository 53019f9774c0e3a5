// Products of many rows: a vector holds one output of W rows, so that a sum needs no addition across lanes, and a row's result depends
// neither on its lane nor on the other rows. Rows are packed for it; the matrix is read row-major, where it is.
//
// Elements are moved as 32-bit words: a float, or a pair of bfloat16 where the processor multiplies pairs.
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

// Whether inputs are floats that are not rounded.
inline bool of_floats(int64_t kind) { return kind == OMNI_FLOAT32 || kind == OMNI_FLOAT32_HALVES; }

// Whether a processor with tiles widens weights for each product of few rows, while it multiplies.
inline bool is_narrow(int64_t kind) { return kind >= OMNI_INT8 && kind != OMNI_FLOAT32_HALVES; }

inline bool in_pairs(int64_t kind) { return PAIRS && !of_floats(kind); }

// Words of one row with `size` elements.
inline int64_t words_of(int64_t kind, int64_t size) {
  int64_t padded = of_floats(kind) ? size : (size + GROUP - 1) / GROUP * GROUP;
  return in_pairs(kind) ? padded / 2 : padded;
}

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
inline Words pair(Floats low, Floats high) {  // lane by lane
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                         17, 1, 16, 0);
  return (Words)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
}

inline __m512i pairs_of(const float *from) {  // 32 floats in their order
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
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

// Up to PANEL outputs of a matrix, [outputs, words]; after the last one, if `padded`, zeros up to a multiple of 16 outputs.
struct Panel {
  const uint32_t *words;
  int64_t stride;
};

// What a kernel reads of a panel, and takes as the next one's address to be fetched meanwhile.
struct Source {
  const char *memory;
  int64_t bytes;  // of one output
};

inline Source source_of(const omni_matrix &a) {
  bool halves = a.kind == OMNI_BFLOAT16 || a.kind == OMNI_FLOAT32_HALVES;
  int64_t bytes = a.kind == OMNI_FLOAT32 ? 4 * a.in : halves ? 2 * a.in : a.kind == OMNI_INT4 ? a.in / 2 : a.kind == OMNI_CODES ? a.in / 2 * 3 : a.in;
  return {(const char *)a.weight, bytes};
}

inline void store_words(uint32_t *to, int64_t element, Floats first, Floats second) {  // 2 * W elements from `element` on
#if PAIRS
  write(to + element / 2, _mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
  write(to + element, first);
  write(to + element + W, second);
#endif
}

#if PAIRS
// 32 adjacent weights in bfloat16.
inline __m512i pairs_of_bytes(const int8_t *from) { return (__m512i)_mm512_cvtne2ps_pbh((__m512)load_bytes(from + W), (__m512)load_bytes(from)); }

inline __m512i pairs_of_bytes(const int8_t *from, float factor) {
  Floats scale = broadcast(factor);
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)(scale * load_bytes(from + W)), (__m512)(scale * load_bytes(from)));
}

// Of 16 bytes, in 16 bits each: the low halves of all, then the high ones; what is above a half is of the other.
inline __m512i halves_of(const uint8_t *from) {
  const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
  return _mm512_srlv_epi16(_mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)from))), shifts);
}

inline __m512i pairs_of_nibbles(const uint8_t *from, float scale, float zero) {
  const __m512 levels = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512 values = _mm512_mul_ps(_mm512_sub_ps(levels, _mm512_set1_ps(zero)), _mm512_set1_ps(scale));
  return _mm512_permutexvar_epi16(halves_of(from), _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(values)));
}

// What the codes of an output stand for, twice. `word`: the output's.
inline __m512i code_table(uint32_t word) {
  const __m512i codes = _mm512_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i exponents = _mm512_slli_epi16(_mm512_subs_epu16(_mm512_set1_epi16((short)(word & 255)), codes), 7);
  return _mm512_maskz_mov_epi16(0x7fff7fff, exponents);
}

// Of 128 inputs those from 32 * `part` on. Tables are looked up by the low five bits, whose fifth is of another code.
inline __m512i pairs_of_codes(const uint8_t *from, int part, __m512i table) {
  const __m512i exchange = _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001), rest = _mm512_set1_epi16((short)0x807f);
  __m512i words = _mm512_loadu_si512(from + 64 * (part / 2)), names = _mm512_loadu_si512(from + 128);
  if (part % 2) words = _mm512_shuffle_epi8(words, exchange);
  __m512i found = _mm512_permutexvar_epi16(_mm512_srli_epi16(names, 4 * part), table);
  return _mm512_ternarylogic_epi32(words, rest, found, 0xea);  // words & rest | found
}
#endif

// One row of int8 weights without their scale, which the output gets.
inline void widen_int8(const int8_t *from, int64_t size, uint32_t *to) {
  int64_t i = 0;
  for (; i + 2 * W <= size; i += 2 * W) store_words(to, i, load_bytes(from + i), load_bytes(from + i + W));
  for (int64_t end = words_of(OMNI_INT8, size) * (PAIRS ? 2 : 1); i < end; i += 2 * W) {
    int8_t part[2 * W] = {};
    if (i < size) memcpy(part, from + i, size - i < 2 * W ? size - i : 2 * W);
    store_words(to, i, load_bytes(part), load_bytes(part + W));
  }
}

// One row of int8 weights with a scale per group.
inline void widen_int8_groups(const int8_t *from, const bf16 *scales, int64_t size, uint32_t *to) {
  for (int64_t g = 0; g < size / GROUP; g++) {
    Floats scale = broadcast(widen(scales[g]));
#pragma GCC unroll 8
    for (int64_t i = g * GROUP; i < (g + 1) * GROUP; i += 2 * W) {
      Floats first = scale * load_bytes(from + i), second = scale * load_bytes(from + i + W);
      store_words(to, i, PAIRS ? first : rounded(first), PAIRS ? second : rounded(second));
    }
  }
}

// One row of 4-bit weights: of 32 inputs, byte j holds number j in its low half and number j + 16 in its high half; what stands for 0 is 8, or
// with ZEROS a number of each group.
template <bool ZEROS>
inline void widen_int4(const uint8_t *from, const bf16 *scales, const bf16 *zeros, int64_t size, uint32_t *to) {
  for (int64_t g = 0; g < size / GROUP; g++, from += 16) {
    float scale = widen(scales[g]), zero = ZEROS ? widen(zeros[g]) : 8.0f;
#if PAIRS
    _mm512_storeu_si512(to + g * 16, pairs_of_nibbles(from, scale, zero));
#elif WIDTH == 8
    const __m256 levels = _mm256_set_ps(7, 6, 5, 4, 3, 2, 1, 0);
    __m256 shift = _mm256_set1_ps(zero), factor = _mm256_set1_ps(scale), after = _mm256_add_ps(levels, _mm256_set1_ps(8));
    __m256 front = (__m256)rounded((Floats)_mm256_mul_ps(_mm256_sub_ps(levels, shift), factor));
    __m256 back = (__m256)rounded((Floats)_mm256_mul_ps(_mm256_sub_ps(after, shift), factor));
#pragma GCC unroll 2
    for (int j = 0; j < 16; j += 8) {  // a lane looks up its number's low three bits; the fourth is shifted to the sign, which chooses the table
      __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + j))), high = _mm256_srli_epi32(bytes, 4);
      __m256 first = _mm256_blendv_ps(_mm256_permutevar8x32_ps(front, bytes), _mm256_permutevar8x32_ps(back, bytes), (__m256)_mm256_slli_epi32(bytes, 28));
      __m256 second = _mm256_blendv_ps(_mm256_permutevar8x32_ps(front, high), _mm256_permutevar8x32_ps(back, high), (__m256)_mm256_slli_epi32(bytes, 24));
      _mm256_storeu_ps((float *)to + g * GROUP + j, first);
      _mm256_storeu_ps((float *)to + g * GROUP + 16 + j, second);
    }
#else
    float part[32];
    for (int j = 0; j < 16; j++) {  // rounded as where pairs are multiplied
      part[j] = widen(narrow(scale * ((float)(from[j] & 15) - zero)));
      part[j + 16] = widen(narrow(scale * ((float)(from[j] >> 4) - zero)));
    }
    memcpy(to + g * GROUP, part, sizeof part);
#endif
  }
}

// Inputs of one row of codes, `size` from `begin` on; `words` are of the row, `rare` of the matrix.
inline void widen_codes(const uint8_t *from, const uint32_t *words, const uint32_t *rare, int64_t begin, int64_t size, uint32_t *to) {
  int32_t largest = words[0] & 255;
  (void)largest;
#if PAIRS
  __m512i table = code_table(words[0]);
#elif WIDTH == 16
  const __m512i codes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), rest = _mm512_set1_epi32((int)0x807f0000);
  __m512i exponents = _mm512_slli_epi32(_mm512_max_epi32(_mm512_sub_epi32(_mm512_set1_epi32(largest), codes), _mm512_setzero_si512()), 23);
  __m512i table = _mm512_maskz_mov_epi32(0x7fff, exponents);
#elif WIDTH == 8
  const __m256i codes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), none = _mm256_setzero_si256(), rest = _mm256_set1_epi32((int)0x807f0000);
  __m256i down = _mm256_sub_epi32(_mm256_set1_epi32(largest), codes), last = _mm256_set_epi32(0, -1, -1, -1, -1, -1, -1, -1);
  __m256 front = (__m256)_mm256_slli_epi32(_mm256_max_epi32(down, none), 23);
  __m256 back = (__m256)_mm256_and_si256(_mm256_slli_epi32(_mm256_max_epi32(_mm256_sub_epi32(down, _mm256_set1_epi32(8)), none), 23), last);
#endif
  for (int64_t i = 0; i < size; i += 128, from += 192) {
    for (int line = 0; line < 192; line += 64) fetch(from + AHEAD + line);
#if PAIRS
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) _mm512_storeu_si512(to + i / 2 + 16 * part, pairs_of_codes(from, part, table));
#elif WIDTH == 16
#pragma GCC unroll 8
    for (int j = 0; j < 128; j += 16) {
      __m512i names = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(from + 128 + j % 32 * 2)));
      __m512i word = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(from + 64 * (j / 64) + j % 32 * 2)));
      __m512i found = _mm512_permutexvar_epi32(_mm512_srli_epi32(names, 4 * (j / 32)), table);
      if (j % 64 >= 32) word = _mm512_or_si512(_mm512_slli_epi32(word, 8), _mm512_srli_epi32(word, 8));
      _mm512_storeu_si512(to + i + j, _mm512_ternarylogic_epi32(_mm512_slli_epi32(word, 16), rest, found, 0xea));
    }
#elif WIDTH == 8
#pragma GCC unroll 16
    for (int j = 0; j < 128; j += 8) {
      __m256i names = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(from + 128 + j % 32 * 2)));
      __m256i word = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(from + 64 * (j / 64) + j % 32 * 2)));
      __m256i code = _mm256_srli_epi32(names, 4 * (j / 32));
      __m256 found = _mm256_blendv_ps(_mm256_permutevar8x32_ps(front, code), _mm256_permutevar8x32_ps(back, code), (__m256)_mm256_slli_epi32(code, 28));
      if (j % 64 >= 32) word = _mm256_or_si256(_mm256_slli_epi32(word, 8), _mm256_srli_epi32(word, 8));
      _mm256_storeu_ps((float *)to + i + j, _mm256_or_ps((__m256)_mm256_and_si256(_mm256_slli_epi32(word, 16), rest), found));
    }
#else
    for (int j = 0; j < 128; j++) {
      const uint8_t *pair = from + 64 * (j / 64) + j % 32 * 2, *names = from + 128 + j % 32 * 2;
      uint32_t code = names[j / 64] >> (j / 32 % 2 * 4) & 15, mantissa = pair[j / 32 % 2] & 127, sign = pair[j / 32 % 2 == 0] >> 7;
      uint32_t exponent = code < 15 && largest > (int32_t)code ? largest - code : 0;
      to[i + j] = sign << 31 | exponent << 23 | mantissa << 16;
    }
#endif
  }
  for (const uint32_t *at = rare + (words[0] >> 8), *end = rare + (words[1] >> 8); at < end; at++) {
    int64_t input = (int64_t)(*at >> 16) - begin;
    if (input < 0 || input >= size) continue;
#if PAIRS
    ((uint16_t *)to)[input] = (uint16_t)*at;
#else
    to[input] = *at << 16;
#endif
  }
}

inline const uint8_t *codes_of(const omni_matrix &a, int64_t output) { return (const uint8_t *)a.weight + output * (a.in / 2 * 3); }

inline void widen_codes(const omni_matrix &a, int64_t output, int64_t begin, int64_t size, uint32_t *to) {
  const uint32_t *words = (const uint32_t *)a.group_scales;
  widen_codes(codes_of(a, output) + begin / 2 * 3, words + output, words + a.out + 1, begin, size, to);
}

inline void widen_bfloat16(const bf16 *from, int64_t size, uint32_t *to) {
#if PAIRS
  memcpy(to, from, size * sizeof(bf16));
  memset((bf16 *)to + size, 0, (2 * words_of(OMNI_BFLOAT16, size) - size) * sizeof(bf16));
#else
  to_floats(from, size, (float *)to);
  for (int64_t i = size; i < words_of(OMNI_BFLOAT16, size); i++) to[i] = 0;
#endif
}

// Inputs from `begin` on, `size` of them; all, but of int8 and 4-bit weights.
inline Panel panel_of(const omni_matrix &a, int64_t output, int64_t count, uint32_t *buffer, int64_t begin = 0, int64_t size = 0) {
  Source source = source_of(a);
  if (!size) size = a.in;
  const char *from = source.memory + output * source.bytes + (a.kind == OMNI_INT4 ? begin / 2 : begin);  // of codes: widen_codes()
  if (a.kind == OMNI_FLOAT32) return {(const uint32_t *)from, a.in};
  if (PAIRS && a.kind == OMNI_BFLOAT16 && a.in % GROUP == 0 && (!TILES || count % 16 == 0)) return {(const uint32_t *)from, a.in / 2};
  int64_t stride = words_of(a.kind, size);
  for (int64_t o = 0; o < count; o++, from += source.bytes) {
    uint32_t *to = buffer + o * stride;
    if (a.kind == OMNI_BFLOAT16) widen_bfloat16((const bf16 *)from, a.in, to);
    else if (a.kind == OMNI_FLOAT32_HALVES) to_floats((const bf16 *)from, a.in, (float *)to);
    else if (a.kind == OMNI_INT8) widen_int8((const int8_t *)from, size, to);
    else if (a.kind == OMNI_CODES) widen_codes(a, output + o, begin, size, to);
    else if (a.kind == OMNI_INT8_GROUPS) {
      widen_int8_groups((const int8_t *)from, (const bf16 *)a.group_scales + ((output + o) * a.in + begin) / GROUP, size, to);
    } else if (a.zero_points) {
      const bf16 *scales = (const bf16 *)a.group_scales + (2 * (output + o) * a.in + begin) / GROUP;
      widen_int4<true>((const uint8_t *)from, scales, scales + a.in / GROUP, size, to);
    } else {
      widen_int4<false>((const uint8_t *)from, (const bf16 *)a.group_scales + ((output + o) * a.in + begin) / GROUP, nullptr, size, to);
    }
  }
  if (TILES) memset(buffer + count * stride, 0, ((count + 15) / 16 * 16 - count) * stride * sizeof(uint32_t));
  return {buffer, stride};
}

constexpr int64_t TURN = 16;  // steps between fetches

// Half of the lanes: processors of two multipliers of 256 bits compute eight rows in half of the time of sixteen.
constexpr int FEW = WIDTH == 16 && !TILES ? 8 : W;
typedef float FewFloats __attribute__((vector_size(4 * FEW)));
typedef uint32_t FewWords __attribute__((vector_size(4 * FEW)));

template <bool FLOATS>
inline __attribute__((always_inline)) Floats add_product(Floats sum, Words x, uint32_t word) {
  float value;
  memcpy(&value, &word, 4);
#if PAIRS
  if constexpr (!FLOATS) return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)_mm512_set1_epi32((int)word));
#endif
  return sum + (Floats)x * broadcast(value);
}

#if WIDTH == 16 && !TILES
template <bool FLOATS>
inline __attribute__((always_inline)) FewFloats add_product(FewFloats sum, FewWords x, uint32_t word) {
#if PAIRS
  if constexpr (!FLOATS) return (FewFloats)_mm256_dpbf16_ps((__m256)sum, (__m256bh)x, (__m256bh)_mm256_set1_epi32((int)word));
#endif
  float value;
  memcpy(&value, &word, 4);
  return sum + (FewFloats)x * value;
}
#endif

#if INTEGER_LANES
template <bool>
inline __attribute__((always_inline)) Ints add_product(Ints sum, Words x, uint32_t word) {  // pairs of 16 bits
#if WIDTH == 16
  sum += (Ints)_mm512_madd_epi16((__m512i)x, _mm512_set1_epi32((int)word));
#else
  sum += (Ints)_mm256_madd_epi16((__m256i)x, _mm256_set1_epi32((int)word));
#endif
  __asm__("" : "+v"(sum));  // compilers would add in another order, for which the registers do not suffice
  return sum;
}
#endif

// Sums of OUTS outputs for V blocks of rows (of V = 1 with few: the first FEW rows, and zeros): c[out][V * W], added to what is there if they
// `go_on`. `next`: memory that is read after this, of which `lines` are fetched every TURN steps; returns where that ends.
template <bool FLOATS, int OUTS, int V, class F, class I>
__attribute__((noinline)) const char *lane_sums(const uint32_t *a, int64_t stride, const uint32_t *x, int64_t block, int64_t steps, float *c,
                                                const char *next, int64_t lines, bool go_on) {
  F sums[OUTS][V] = {};
  if (go_on)
#pragma GCC unroll 12
    for (int o = 0; o < OUTS; o++)
#pragma GCC unroll 2
      for (int i = 0; i < V; i++) sums[o][i] = read<F>(c + o * 2 * W + i * W);
  constexpr int BASES = (OUTS + 2) / 3;  // three rows of the matrix from one address, so that all addresses have registers
  const char *bases[BASES];
  int64_t row = stride * (int64_t)sizeof(uint32_t);
#pragma GCC unroll 4
  for (int b = 0; b < BASES; b++) bases[b] = (const char *)a + 3 * b * row;
  for (int64_t k = 0; k < steps; k++) {
    if (lines && k % TURN == 0)
      for (int64_t line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, 2);
    I v[V];
#pragma GCC unroll 2
    for (int i = 0; i < V; i++) v[i] = read<I>(x + i * block + k * W);
#pragma GCC unroll 12
    for (int o = 0; o < OUTS; o++) {
      uint32_t word = read<uint32_t>(bases[o / 3] + o % 3 * row);
#pragma GCC unroll 2
      for (int i = 0; i < V; i++) sums[o][i] = add_product<FLOATS>(sums[o][i], v[i], word);
    }
#pragma GCC unroll 4
    for (int b = 0; b < BASES; b++) bases[b] += sizeof(uint32_t);
  }
#pragma GCC unroll 12
  for (int o = 0; o < OUTS; o++)
#pragma GCC unroll 2
    for (int i = 0; i < V; i++) {
      write(c + o * 2 * W + i * W, sums[o][i]);
      if constexpr (sizeof(F) < sizeof(Floats)) write(c + o * 2 * W + i * W + FEW, F{});
    }
  return next;
}

// Outputs at once, as the registers hold: with V = 1 half of them, or with vectors of eight twice as many, because a sum waits for itself.
template <int V>
constexpr int SOME = WIDTH == 16 ? 8 : WIDTH == 8 ? 12 / V : 4;
constexpr int64_t DEPTH = 256;  // steps of two blocks of rows that stay in the first cache while all outputs of a panel pass

// Outputs at once, of those that are left: the last eight as two fours, so that none is alone in panels of 16 and 32.
template <int V>
inline int64_t outs_of(int64_t left) {
  if (left >= SOME<V> && !(SOME<V> == 6 && left == 8)) return SOME<V>;
  return left >= 4 ? 4 : 1;
}

template <bool FLOATS, int V, class F = Floats, class I = Words>
__attribute__((noinline)) void lane_panel(const uint32_t *a, int64_t stride, int64_t count, const uint32_t *x, int64_t block, int64_t steps, float *c,
                                          const char *next, int64_t bytes) {
  int64_t turns = 0;
  for (int64_t o = 0; next && o < count; o += outs_of<V>(count - o)) turns += (steps + TURN - 1) / TURN;
  int64_t lines = turns ? (bytes / 64 + turns - 1) / turns : 0;
  for (int64_t k = 0; k < steps; k += DEPTH) {
    int64_t some = steps - k < DEPTH ? steps - k : DEPTH;
    const uint32_t *w = a + k, *v = x + k * W;
    for (int64_t o = 0, outs; o < count; o += outs) {
      outs = outs_of<V>(count - o);
      auto sums = outs == SOME<V> ? lane_sums<FLOATS, SOME<V>, V, F, I> : outs == 4 ? lane_sums<FLOATS, 4, V, F, I> : lane_sums<FLOATS, 1, V, F, I>;
      next = sums(w + o * stride, stride, v, block, some, c + o * 2 * W, next, lines, k);
    }
  }
}

#if TILES
struct __attribute__((aligned(64))) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles are a thread's state while it computes a call, and nothing between calls.
struct Tiles {
  Tiles() {
    TileConfig config;
    __asm__ volatile("" : : "r"(&config) : "memory");  // compilers take it that only the first eight bytes are read
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

// M * 16 outputs, the second 16 at `after`, and V blocks of rows, which pass the first cache once per panel. `next`, `later`: memory that is read
// after this, some of which is fetched in each step; or null.
template <int M, int V>
__attribute__((noinline)) void tile_panel(const uint32_t *a, const uint32_t *after, int64_t stride, const uint32_t *x, int64_t block, int64_t steps, float *c,
                                          const char *next, const char *later, int64_t bytes, bool first, bool last) {
  if (first) {
    _tile_zero(0);
    if (V > 1) _tile_zero(1);
    if (M > 1) _tile_zero(2);
    if (M > 1 && V > 1) _tile_zero(3);
  }
  int64_t lines = next ? (bytes / 64 * 16 + steps - 1) / steps : 0;
  for (int64_t k = 0; k < steps; k += 16) {
    _tile_loadd(4, a + k, stride * 4);
    _tile_stream_loadd(6, x + k * 16, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (V > 1) {
      _tile_stream_loadd(7, x + block + k * 16, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (M > 1) {
      _tile_loadd(5, after + k, stride * 4);
      _tile_dpbf16ps(2, 5, 6);
      if (V > 1) _tile_dpbf16ps(3, 5, 7);
    }
    for (int64_t line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, 2);
    for (int64_t line = 0; later && line < lines; line++, later += 64) __builtin_prefetch(later, 0, 2);
  }
  if (!last) return;
  _tile_stored(0, c, 128);
  if (V > 1) _tile_stored(1, c + 16, 128);
  if (M > 1) _tile_stored(2, c + 16 * 32, 128);
  if (M > 1 && V > 1) _tile_stored(3, c + 16 * 32 + 16, 128);
}
#else
struct Tiles {};
#endif

template <bool FLOATS>
inline void lane_panels(const Panel &p, int64_t count, const uint32_t *x, int64_t block, int64_t steps, int64_t rows, float *c, const char *next,
                        int64_t bytes) {
  if (rows > W + FEW || (FEW == W && rows > W)) return lane_panel<FLOATS, 2>(p.words, p.stride, count, x, block, steps, c, next, bytes);
  if (rows > FEW) lane_panel<FLOATS, 1>(p.words, p.stride, count, x, block, steps, c, next, bytes);
  if (rows > W)
    lane_panel<FLOATS, 1, FewFloats, FewWords>(p.words, p.stride, count, x + block, block, steps, c + W, nullptr, 0);
  else if (rows <= FEW)
    lane_panel<FLOATS, 1, FewFloats, FewWords>(p.words, p.stride, count, x, block, steps, c, next, bytes);
}

// c[count][2 * W], the sums of `count` outputs of a panel for one or two blocks with `rows` rows.
inline void panel_sums(bool floats, const Panel &p, int64_t count, const uint32_t *x, int64_t block, int64_t steps, int64_t rows, float *c,
                       const char *next, int64_t bytes) {
#if TILES
  bool two = rows > W;
  if (!floats) {
    if (count > 16)
      (two ? tile_panel<2, 2> : tile_panel<2, 1>)(p.words, p.words + 16 * p.stride, p.stride, x, block, steps, c, next, nullptr, bytes, true, true);
    else
      (two ? tile_panel<1, 2> : tile_panel<1, 1>)(p.words, nullptr, p.stride, x, block, steps, c, next, nullptr, bytes, true, true);
    return;
  }
#endif
  if (floats)
    lane_panels<true>(p, count, x, block, steps, rows, c, next, bytes);
  else if (PAIRS)
    lane_panels<false>(p, count, x, block, steps, rows, c, next, bytes);
}

inline void scale_sums(const omni_matrix &a, int64_t output, int64_t count, float *c) {  // c[count][2 * W]
  if (!a.scales && !a.bias) return;
  for (int64_t i = 0; i < count; i++) {
    float scale = a.scales ? a.scales[output + i] : 1.0f, bias = a.bias ? a.bias[output + i] : 0.0f;
    for (int v = 0; v < 2 * W; v += W) write(c + i * 2 * W + v, read<Floats>(c + i * 2 * W + v) * scale + bias);
  }
}

// Scratch memory of lane_product(), in words.
inline int64_t panel_words(int64_t kind, int64_t size) {
  if (kind == OMNI_FLOAT32) return 0;
  int64_t words = PANEL * words_of(kind, size);
  return words < TURNS ? TURNS : words;
}

}  // namespace
