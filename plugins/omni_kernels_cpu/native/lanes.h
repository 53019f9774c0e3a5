// Sums of the outputs of a panel for packed rows, by vectors or by tiles.
#pragma once
#include "tiles.h"

namespace {

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

// c[count][2 * W], the sums of `count` outputs of a panel for one or two blocks with `rows` rows. `next`: memory that is read after this, or null.
inline void panel_sums(int64_t kind, const Panel &p, int64_t count, const uint32_t *x, int64_t block, int64_t steps, int64_t rows, float *c,
                       const char *next, int64_t bytes) {
#if TILES
  if (kind != VECTORS) {
    tile_sums(kind, p, count > 16 ? p.words + 16 * p.stride : nullptr, x, block, steps, rows > W, {next, nullptr, bytes});
    return store_tiles(count > 16, rows > W, c);
  }
#endif
  if (!in_pairs(kind))
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

constexpr int64_t MOST_PANELS = 8;

constexpr int64_t MANY_WORDS = 1 << 17;  // of rows, which no longer stay in the second cache while all panels pass them

// Panels that pass each block of rows together, so that many rows are read once for all of these panels: as many as leave room for a block.
inline int64_t panels_at_once(int64_t kind, int64_t size) {
  if (!in_parts(kind) && !(TILES && kind == OMNI_BFLOAT16)) return 1;
  int64_t bytes = PANEL * 4 * weight_words(kind, size), some = bytes ? (1 << 20) / bytes : 1;
  return some < 1 ? 1 : some < MOST_PANELS ? some : MOST_PANELS;
}

// Scratch memory of lane_product(), in words.
inline int64_t panel_words(int64_t kind, int64_t size) {
  if (kind == OMNI_FLOAT32 && !TILES) return 0;
  int64_t words = panels_at_once(kind, size) * PANEL * weight_words(kind, size);
  return words < TURNS ? TURNS : words;
}

}  // namespace
