// Instructions that a processor lacks, for tests of the code of every instruction set on any processor with AVX2: `compile.py --emulate` includes
// this before the kernels. Most are SIMDe's (Debian: libsimde-dev); what it lacks, or has with other types, is computed by loops here, slowly.
// EMULATE: 1 AVX-512, 2 with pairs of bfloat16 and fours of bytes, 3 with tiles.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/fma.h>
#include <simde/x86/avx512.h>

namespace {

template <class Made, class To, class From, class Given>
inline Made converted(Given given) {
  From from;
  memcpy(&from, &given, sizeof from);
  To to = __builtin_convertvector(from, To);
  Made made;
  memcpy(&made, &to, sizeof made);
  return made;
}

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef int8_t B16 __attribute__((vector_size(16)));
typedef uint16_t H16 __attribute__((vector_size(32)));
typedef uint8_t C32 __attribute__((vector_size(32)));
typedef uint16_t H32 __attribute__((vector_size(64)));
typedef int16_t Pairs16 __attribute__((vector_size(64)));
typedef int16_t Pairs8 __attribute__((vector_size(32)));

inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (uint16_t)(value == value ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u);
}

inline float bits_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline float of_low(uint32_t pair) { return bits_of(pair << 16); }
inline float of_high(uint32_t pair) { return bits_of(pair & 0xffff0000u); }

template <class Made, class Vector>
inline Made narrowed(Vector low, Vector high) {
  constexpr int count = sizeof(Made) / 2, each = sizeof(Vector) / 4;
  float values[2 * each];
  uint16_t halves[count];
  memcpy(values, &low, sizeof low);
  memcpy(values + each, &high, sizeof high);
  for (int i = 0; i < count; i++) halves[i] = to_bfloat16(values[i]);
  Made made;
  memcpy(&made, halves, sizeof made);
  return made;
}

template <class Vector, class Pairs>
inline Vector add_pair_products(Vector sum, Pairs a, Pairs b) {
  constexpr int count = sizeof(Vector) / 4;
  float sums[count];
  uint32_t x[count], y[count];
  memcpy(sums, &sum, sizeof sum);
  memcpy(x, &a, sizeof a);
  memcpy(y, &b, sizeof b);
  for (int i = 0; i < count; i++) sums[i] += of_high(x[i]) * of_high(y[i]) + of_low(x[i]) * of_low(y[i]);
  memcpy(&sum, sums, sizeof sum);
  return sum;
}

inline __m512i masked_bytes(uint64_t mask, const void *memory) {
  uint8_t bytes[64] = {};
  for (int i = 0; i < 64; i++)
    if (mask >> i & 1) bytes[i] = ((const uint8_t *)memory)[i];
  __m512i made;
  memcpy(&made, bytes, 64);
  return made;
}

inline __m512i extended(__m256i half) {
  __m512i made = _mm512_setzero_si512();
  memcpy(&made, &half, 32);
  return made;
}

struct Tile {
  uint32_t words[16][16];
};
thread_local Tile tiles[8];

inline void load_tile(int tile, const void *from, int64_t stride) {
  for (int row = 0; row < 16; row++) memcpy(tiles[tile].words[row], (const char *)from + row * stride, 64);
}

inline void store_tile(int tile, void *to, int64_t stride) {
  for (int row = 0; row < 16; row++) memcpy((char *)to + row * stride, tiles[tile].words[row], 64);
}

inline void add_tile_product(int sum, int a, int b) {
  for (int row = 0; row < 16; row++) {
    float sums[16];
    memcpy(sums, tiles[sum].words[row], 64);
    for (int k = 0; k < 16; k++) {
      uint32_t x = tiles[a].words[row][k];
      for (int i = 0; i < 16; i++) {
        uint32_t y = tiles[b].words[k][i];
        sums[i] += of_low(x) * of_low(y) + of_high(x) * of_high(y);
      }
    }
    memcpy(tiles[sum].words[row], sums, 64);
  }
}

}  // namespace

#undef _mm512_madd_epi16
#undef _mm512_cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#undef _mm512_dpbf16_ps
#undef _mm256_dpbf16_ps
#define _mm512_madd_epi16 simde_mm512_madd_epi16
#define _mm512_cvtepi32_ps(a) converted<__m512, F16, I16>(a)
#define _mm512_cvtepi8_epi32(a) converted<__m512i, I16, B16>(a)
#define _mm512_cvtepu16_epi32(a) converted<__m512i, I16, H16>(a)
#define _mm512_cvtepu8_epi16(a) converted<__m512i, H32, C32>(a)
#define _mm512_zextsi256_si512 extended
#define _mm512_maskz_loadu_epi8 masked_bytes
#define _mm512_cvtne2ps_pbh(high, low) narrowed<__m512i, __m512>(low, high)
#define _mm512_cvtneps_pbh(a) narrowed<__m256i, __m512>(a, a)
#define _mm512_dpbf16_ps add_pair_products<__m512, Pairs16>
#define _mm256_dpbf16_ps add_pair_products<__m256, Pairs8>
#define __m512bh Pairs16
#define __m256bh Pairs8
#define __mmask64 uint64_t
#define _tile_loadconfig(config) ((void)(config))
#define _tile_release() ((void)0)
#define _tile_zero(tile) memset(&tiles[tile], 0, sizeof(Tile))
#define _tile_loadd load_tile
#define _tile_stream_loadd load_tile
#define _tile_stored store_tile
#define _tile_dpbf16ps add_tile_product

#define __asm__(...) ((void)0)  // names registers that this processor lacks
#define __AVX512F__ 1
#if EMULATE >= 2
#define __AVX512BF16__ 1
#define __AVX512VNNI__ 1
#endif
#if EMULATE >= 3
#define __AMX_BF16__ 1
#endif
