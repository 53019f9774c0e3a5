// Causal attention of a run of one request's positions. A vector holds a score, or an output, of W query rows; keys are read row-major,
// values are turned once per run and key head.
#pragma once
#include "attention.h"
#include "lane_products.h"

namespace {

template <class T>
struct PromptAttention {
  static constexpr int64_t KIND = sizeof(T) == 4 ? VECTORS : (int64_t)OMNI_BFLOAT16;
  int64_t width, total, key_steps, value_stride;
  uint32_t *keys, *values, *queries, *weights;
  float *scores;

  static int64_t padded(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

  PromptAttention(int64_t width, int64_t total, Scratch &own)
      : width(width), total(total), key_steps(words_of(KIND, width)), value_stride((words_of(KIND, total) + 15) / 16 * 16) {
    keys = own.take<uint32_t>(padded(total) * key_steps);
    values = own.take<uint32_t>(padded(width) * value_stride);
    queries = own.take<uint32_t>(2 * W * key_steps);
    weights = own.take<uint32_t>(2 * W * value_stride);
    scores = own.take<float>(padded(total) * 2 * W);
  }

  static void row(const float *from, int64_t size, uint32_t *to) { memcpy(to, from, size * sizeof(float)); }
  static void row(const bf16 *from, int64_t size, uint32_t *to) { widen_bfloat16(from, size, to); }

  static Floats some(const T *from, int64_t d, int64_t size) { return load_at(from, d, size); }

  // Reads the keys and values of one key head: `place` gives the slots of positions, `stride` is between slots.
  template <class Places>
  void read_cache(const T *cached_keys, const T *cached_values, int64_t stride, Places place) {
    for (int64_t p = 0; p < total;) {
      Run run = place(p, total);
      for (int64_t i = 0; i < run.length; i++, p++) row(cached_keys + (run.slot + i) * stride, width, keys + p * key_steps);
    }
    memset(keys + total * key_steps, 0, (padded(total) - total) * key_steps * sizeof(uint32_t));
    memset(values + width * value_stride, 0, (padded(width) - width) * value_stride * sizeof(uint32_t));
    constexpr int64_t EACH = in_pairs_of_kind() ? 2 : 1;  // positions of a word
    for (int64_t p = 0; p < value_stride * EACH; p += W * EACH) {
      const T *rows[W * EACH];
      for (int64_t i = 0; i < W * EACH; i++) rows[i] = p + i < total ? cached_values + place(p + i, total).slot * stride : nullptr;
      for (int64_t d = 0; d < width; d += W) turn(rows, d, values + d * value_stride + p / EACH);
    }
  }

  static constexpr bool in_pairs_of_kind() { return PAIRS && sizeof(T) == 2; }

  // W dimensions from `d` on of W words of positions.
  void turn(const T *const *rows, int64_t d, uint32_t *to) {
    int64_t most = width - d < W ? width - d : W;
#if WIDTH == 16
    __m512i v[16];
    for (int i = 0; i < 16; i++) {
#if PAIRS
      if constexpr (sizeof(T) == 2) {
        Floats low = rows[2 * i] ? some(rows[2 * i], d, width) : Floats{}, high = rows[2 * i + 1] ? some(rows[2 * i + 1], d, width) : Floats{};
        v[i] = (__m512i)pair(low, high);
        continue;
      }
#endif
      v[i] = rows[i] ? (__m512i)some(rows[i], d, width) : _mm512_setzero_si512();
    }
    transpose(v);
    for (int i = 0; i < 16; i++)
      if (i < most) _mm512_storeu_si512(to + i * value_stride, v[i]);
#else
    for (int64_t p = 0; p < W; p++) {
      Floats v = rows[p] ? some(rows[p], d, width) : Floats{};
      for (int64_t i = 0; i < most; i++) memcpy(to + i * value_stride + p, &v[i], 4);
    }
#endif
  }

  // Attends with up to 2 * W query rows, already scaled; row i sees limits[i] positions. `emit(row, d, count, values)` takes the output.
  template <class Emit>
  void attend(const float *const *rows, const int64_t *limits, int64_t count, Emit emit) {
    bool two = count > W;
    int64_t least = limits[0], seen = limits[0];
    __attribute__((aligned(64))) float limit[2 * W];
    for (int64_t i = 0; i < 2 * W; i++) {
      int64_t each = limits[i < count ? i : 0];
      limit[i] = (float)each;
      least = each < least ? each : least;
      seen = each > seen ? each : seen;
    }
    for (int64_t i = 0; i < (two ? 2 : 1); i++) pack_block(KIND, rows + i * W, count - i * W < W ? count - i * W : W, width, queries + i * W * key_steps);
    for (int64_t p = 0; p < seen; p += PANEL) {
      int64_t some = seen - p < PANEL ? seen - p : PANEL;
      panel_sums(KIND, Panel{keys + p * key_steps, key_steps, 16}, some, queries, W * key_steps, key_steps, count, scores + p * 2 * W, nullptr, 0);
    }
    int64_t steps = words_of(KIND, seen);
    __attribute__((aligned(64))) float scales[2 * W];
    for (int64_t i = 0; i < (two ? 2 : 1); i++) weigh(scores + i * W, read<Floats>(limit + i * W), least, seen, weights + i * W * steps, scales + i * W);
    for (int64_t d = 0; d < width; d += PANEL) {
      __attribute__((aligned(64))) float c[PANEL * 2 * W];
      int64_t outs = width - d < PANEL ? width - d : PANEL;
      panel_sums(KIND, Panel{values + d * value_stride, value_stride, 16}, outs, weights, W * steps, steps, count, c, nullptr, 0);
      for (int64_t part = 0; part < outs; part += 16) {
        int64_t each = outs - part < 16 ? outs - part : 16;
        for (int64_t i = 0; i < (two ? 2 : 1); i++) {
          for (int64_t o = part; o < part + each; o++) {
            float *sums = c + o * 2 * W + i * W;
            write(sums, read<Floats>(sums) * read<Floats>(scales + i * W));
          }
          int64_t some = count - i * W < W ? count - i * W : W;
          emit_rows(c + part * 2 * W + i * W, 2 * W, each, some, [&](int64_t r, const float *v) { emit(i * W + r, d + part, each, v); });
        }
      }
    }
  }

  // Softmax of W rows' scores, [positions][2 * W], as words of a block; `scales`: what the outputs are multiplied with.
  static void weigh(float *scores, Floats limits, int64_t least, int64_t seen, uint32_t *to, float *scales) {
    const Floats lowest = broadcast(-__builtin_inff());
    Floats most = lowest, total = {};
    for (int64_t p = 0; p < seen; p++) {
      Floats v = read<Floats>(scores + p * 2 * W);
      if (p >= least) v = limits > broadcast((float)p) ? v : lowest;
      most = v > most ? v : most;
    }
    auto weight = [&](int64_t p) {
      Floats e = exponential(read<Floats>(scores + p * 2 * W) - most);
      if (p >= least) e = limits > broadcast((float)p) ? e : Floats{};
      total += e;
      return e;
    };
#if PAIRS
    if constexpr (sizeof(T) == 2) {
      int64_t p = 0, end = words_of(KIND, seen);
      for (; 2 * p + 2 <= seen; p++) {
        Floats low = weight(2 * p), high = weight(2 * p + 1);
        write(to + p * W, pair(low, high));
      }
      for (; p < end; p++) write(to + p * W, pair(2 * p < seen ? weight(2 * p) : Floats{}, Floats{}));
      write(scales, 1.0f / total);
      return;
    }
#endif
    for (int64_t p = 0; p < seen; p++) {
      Floats e = weight(p);
      write(to + p * W, sizeof(T) == 2 ? rounded(e) : e);
    }
    for (int64_t p = seen; p < words_of(KIND, seen); p++) write(to + p * W, Floats{});
    write(scales, 1.0f / total);
  }
};

}  // namespace
