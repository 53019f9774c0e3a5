// Panels of matrices of any kind, a few outputs whose weights are in the caches while rows pass: widened, split, or where they are.
#pragma once
#include "packed.h"

namespace {

// Up to PANEL outputs of a matrix, [outputs, words]; for tiles, with zeros up to a multiple of 16 outputs, or as they are in tiles_of().
struct Panel {
  const uint32_t *words;
  int64_t stride, step;  // words from an output to the next one, and from 32 inputs, or a part of them, to the next
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
  if (a.kind == OMNI_FLOAT32) return {(const uint32_t *)from, a.in, 16};  // without tiles
  bool in_place = a.kind == OMNI_BFLOAT16 || (TILES && a.kind == OMNI_FLOAT32_HALVES);
  if (PAIRS && in_place && a.in % GROUP == 0 && (!TILES || count % 16 == 0)) return {(const uint32_t *)from, a.in / 2, 16};
  int64_t stride = words_of(in_place ? (int64_t)OMNI_BFLOAT16 : a.kind, size);
  for (int64_t o = 0; o < count; o++, from += source.bytes) {
    uint32_t *to = buffer + o * stride;
    if (in_place) widen_bfloat16((const bf16 *)from, a.in, to);
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
  return {buffer, stride, 16};
}

#if TILES
// A panel of a matrix in float32 or bfloat16 whose tiles are each adjacent: [32 inputs][parts][outputs][16 words].
inline Panel tiles_of(const omni_matrix &a, int64_t output, int64_t count, uint32_t *buffer) {
  int64_t outputs = (count + 15) / 16 * 16, parts = a.kind == OMNI_FLOAT32 ? SPLIT : 1;
  Source source = source_of(a);
  const char *from = source.memory + output * source.bytes;
  uint32_t *to = buffer;
  for (int64_t i = 0; i < a.in; i += 32, to += parts * outputs * 16) {
    for (int64_t o = 0; o < outputs; o++) {
      __m512i v[SPLIT] = {};
      if (o < count && parts > 1) split_pairs((const float *)(from + o * source.bytes), a.in, i, v);
      if (o < count && parts == 1) v[0] = halves_at((const bf16 *)(from + o * source.bytes), a.in, i);
      _mm512_store_si512(to + o * 16, v[0]);
      if (parts == 1) continue;
      _mm512_store_si512(to + (outputs + o) * 16, v[1]);
      _mm512_store_si512(to + (2 * outputs + o) * 16, v[2]);
    }
  }
  return {buffer, 16, outputs * 16};
}
#endif

}  // namespace
