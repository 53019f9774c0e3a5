// Causal convolutions of [channels, columns]. A vector holds adjacent columns of one channel, so a tap is a load at another column, nothing is
// copied for it, and a column's result depends neither on its lane nor on the columns computed with it.
//
// Packed weights: words (floats, or pairs of bfloat16 input channels) as [outs / 6][channels][taps][6], of a single output
// [channels][taps]; tiles as [outs / 16][taps][channels / 32][16 outs][16 pairs]. What is beyond the last output or channel is zero.
#pragma once
#include "lanes.h"
#include "sound_interface.h"

namespace {

constexpr int64_t AT_ONCE = 6;                 // outputs
constexpr int BREADTH = WIDTH == 16 ? 4 : 2;   // vectors of columns
constexpr int64_t COLUMNS = BREADTH * W;       // columns at once; of tiles 32
constexpr int64_t MOST_OUTS = 32;
constexpr int64_t SLACK = 64;                  // columns behind the last that may be read and written

// Channels, or pairs of channels, in rows of words.
struct Plane {
  uint32_t *words;
  int64_t stride;
  inline uint32_t *row(int64_t number) const { return words + number * stride; }
};

// An odd number of cache lines, so that rows do not share their places in a cache.
inline int64_t stride_of(int64_t columns) { return ((columns + SLACK + 15) / 16 | 1) * 16; }

inline int64_t rows_of(int64_t form, int64_t channels) {
  if (form == OMNI_WORDS) return channels;
  return form == OMNI_PAIRS ? (channels + 1) / 2 : (channels + 31) / 32 * 16;
}

template <bool FLOATS, int OUTS, int V>
__attribute__((noinline)) void conv_sums(const uint32_t *w, const uint32_t *x, int64_t stride, int64_t steps, int64_t taps, int64_t dilation, float *c) {
  Floats sums[OUTS][V] = {};
  for (int64_t k = 0; k < steps; k++, x += stride) {
    const uint32_t *at = x;
    for (int64_t tap = 0; tap < taps; tap++, at += dilation, w += OUTS) {
      Words v[V];
#pragma GCC unroll 4
      for (int i = 0; i < V; i++) v[i] = read<Words>(at + i * W);
#pragma GCC unroll 6
      for (int o = 0; o < OUTS; o++) {
#pragma GCC unroll 4
        for (int i = 0; i < V; i++) {
          if constexpr (FLOATS) {
            float value;
            memcpy(&value, w + o, 4);
            sums[o][i] += (Floats)v[i] * broadcast(value);
          } else {
#if PAIRS
            sums[o][i] = (Floats)_mm512_dpbf16_ps((__m512)sums[o][i], (__m512bh)v[i], (__m512bh)_mm512_set1_epi32((int)w[o]));
#endif
          }
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int o = 0; o < OUTS; o++)
#pragma GCC unroll 4
    for (int i = 0; i < V; i++) write(c + o * COLUMNS + i * W, sums[o][i]);
}

template <bool FLOATS, int OUTS>
inline void conv_columns(const uint32_t *w, const uint32_t *x, int64_t stride, int64_t steps, int64_t taps, int64_t dilation, int64_t columns, float *c) {
  if (BREADTH > 2 && columns > 2 * W)
    conv_sums<FLOATS, OUTS, BREADTH>(w, x, stride, steps, taps, dilation, c);
  else if (columns > W)
    conv_sums<FLOATS, OUTS, 2>(w, x, stride, steps, taps, dilation, c);
  else
    conv_sums<FLOATS, OUTS, 1>(w, x, stride, steps, taps, dilation, c);
}

#if TILES
// M * 16 outputs of V * 16 columns, c[32][32]. `group`: words of 16 outputs' weights.
template <int M, int V>
__attribute__((noinline)) void conv_tiles(const uint32_t *w, int64_t group, const uint32_t *x, int64_t stride, int64_t blocks, int64_t taps,
                                          int64_t dilation, float *c) {
  _tile_zero(0);
  if (V > 1) _tile_zero(1);
  if (M > 1) _tile_zero(2);
  if (M > 1 && V > 1) _tile_zero(3);
  for (int64_t tap = 0; tap < taps; tap++) {
    const uint32_t *at = x + tap * dilation;
    for (int64_t k = 0; k < blocks; k++, w += 256, at += 16 * stride) {
      _tile_loadd(4, w, 64);
      _tile_loadd(6, at, stride * 4);
      _tile_dpbf16ps(0, 4, 6);
      if (V > 1) {
        _tile_loadd(7, at + 16, stride * 4);
        _tile_dpbf16ps(1, 4, 7);
      }
      if (M > 1) {
        _tile_loadd(5, w + group, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (V > 1) _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, c, 128);
  if (V > 1) _tile_stored(1, c + 16, 128);
  if (M > 1) _tile_stored(2, c + 16 * 32, 128);
  if (M > 1 && V > 1) _tile_stored(3, c + 16 * 32 + 16, 128);
}
#endif

// Calls sink(first output, outputs, first column, columns, c, stride of c) for blocks of outputs and columns. The first output is even.
// Output column t reads the columns t, t + dilation, ... of `x`.
template <class Sink>
inline void convolve(int64_t form, const void *weights, int64_t in, int64_t out, int64_t taps, int64_t dilation, Plane x, int64_t columns,
                     const omni_team *team, Sink sink) {
  __attribute__((aligned(64))) float c[MOST_OUTS * 32 > AT_ONCE * COLUMNS ? MOST_OUTS * 32 : AT_ONCE * COLUMNS];
  const uint32_t *words = (const uint32_t *)weights;
#if TILES
  if (form == OMNI_TILES) {
    int64_t blocks = (in + 31) / 32, groups = (out + 15) / 16, group = taps * blocks * 256, steps = (columns + 31) / 32;
    Range mine = share((groups + 1) / 2 * steps, 1, team);
    for (int64_t item = mine.begin; item < mine.end; item++) {
      int64_t panel = item / steps, o = panel * 32, t = item % steps * 32;
      const uint32_t *w = words + 2 * panel * group, *at = x.words + t;
      if (2 * panel + 1 < groups)
        (columns - t > 16 ? conv_tiles<2, 2> : conv_tiles<2, 1>)(w, group, at, x.stride, blocks, taps, dilation, c);
      else
        (columns - t > 16 ? conv_tiles<1, 2> : conv_tiles<1, 1>)(w, group, at, x.stride, blocks, taps, dilation, c);
      sink(o, out - o < 32 ? out - o : 32, t, columns - t < 32 ? columns - t : 32, c, 32);
    }
    return;
  }
#endif
  int64_t channels = rows_of(form, in), at_once = out == 1 ? 1 : AT_ONCE, steps = (columns + COLUMNS - 1) / COLUMNS;
  Range mine = share((out + at_once - 1) / at_once * steps, 1, team);
  for (int64_t item = mine.begin; item < mine.end; item++) {
    int64_t o = item / steps * at_once, t = item % steps * COLUMNS, count = columns - t < COLUMNS ? columns - t : COLUMNS;
    const uint32_t *w = words + o * channels * taps;
    if (at_once == 1)
      (form == OMNI_WORDS || !PAIRS ? conv_columns<true, 1> : conv_columns<false, 1>)(w, x.words + t, x.stride, channels, taps, dilation, count, c);
    else
      (form == OMNI_WORDS || !PAIRS ? conv_columns<true, AT_ONCE> : conv_columns<false, AT_ONCE>)(w, x.words + t, x.stride, channels, taps, dilation, count, c);
    sink(o, out - o < at_once ? out - o : at_once, t, count, c, COLUMNS);
  }
}

// sin(pi x)^2, to 2e-7: a polynomial in the square of the distance to the nearest integer. NaN stays NaN.
inline Floats sine_squared(Floats half_turns) {
  const Floats shift = broadcast(12582912.0f), quarter = broadcast(0.25f);
  Floats apart = half_turns - ((half_turns + shift) - shift);
  Floats square = apart * apart;
  square = square > quarter ? quarter : square;
  Floats series = square * -3.2729456424713135f + 12.990730285644531f;
  series = series * square - 30.085952758789062f;
  series = series * square + 42.72538375854492f;
  series = series * square - 32.469581604003906f;
  return (series * square + 9.869603157043457f) * square;
}

inline Floats activated(const omni_snake &snake, int64_t channel, Floats x) {
  if (!snake.frequency) return x;
  return x + sine_squared(x * snake.frequency[channel]) * snake.scale[channel];
}

// 0.5 x (1 + erf(x / sqrt(2))), erf to 2e-7 (Abramowitz and Stegun, 7.1.26).
inline Floats gelu(Floats x) {
  Floats z = x * 0.70710678118654752f;
  Floats magnitude = z < Floats{} ? -z : z;
  Floats t = 1.0f / (1.0f + 0.3275911f * magnitude);
  Floats p = broadcast(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = (p * t + 0.254829592f) * t * exponential(-(z * z));
  Floats twice = x < Floats{} ? p : 2.0f - p;
  return 0.5f * x * twice;
}

// Writes a vector of two adjacent channels, the first even, to the plane that a convolution reads.
inline void put(int64_t form, Plane plane, int64_t channel, int64_t column, Floats low, Floats high, bool two) {
#if PAIRS
  if (form != OMNI_WORDS) {
    write(plane.row(channel / 2) + column, pair(low, high));
    return;
  }
#endif
  (void)form;
  write(plane.row(channel) + column, low);
  if (two) write(plane.row(channel + 1) + column, high);
}

}  // namespace
