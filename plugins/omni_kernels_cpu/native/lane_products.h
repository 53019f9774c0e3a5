// Products of many rows with a matrix of any kind, panel by panel, and of gates with ups.
#pragma once
#include "integer_lanes.h"
#include "turns.h"

namespace {

// Calls emit(row, values) for each of `rows` rows, with its `count` (at most 16) sums in `c`, [count][stride], in order.
template <class Emit>
inline __attribute__((always_inline)) void emit_rows(const float *c, int64_t stride, int64_t count, int64_t rows, Emit emit) {
#if WIDTH == 16
  if (rows > 2) {
    __m512i v[16];
    __attribute__((aligned(64))) float turned[16][16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] = i < count ? _mm512_loadu_si512(c + i * stride) : _mm512_setzero_si512();
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_si512(turned[i], v[i]);
    for (int64_t row = 0; row < rows; row++) emit(row, turned[row]);
    return;
  }
#elif WIDTH == 8
  if (rows > 2) {
    __attribute__((aligned(64))) float turned[8][16];
#pragma GCC unroll 2
    for (int half = 0; half < 16; half += 8) {
      if (half >= count) break;
      __m256 v[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) v[i] = half + i < count ? _mm256_loadu_ps(c + (half + i) * stride) : _mm256_setzero_ps();
      transpose(v);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) _mm256_store_ps(turned[i] + half, v[i]);
    }
    for (int64_t row = 0; row < rows; row++) emit(row, turned[row]);
    return;
  }
#endif
  for (int64_t row = 0; row < rows; row++) {
    __attribute__((aligned(64))) float values[16];
    for (int64_t o = 0; o < count; o++) values[o] = c[o * stride + row];
    emit(row, values);
  }
}

constexpr int64_t MANY_BLOCKS = 16;  // of rows that are split, for which it pays to copy weights in bfloat16 into tiles_of()

// A panel for `blocks` of rows.
inline Panel any_panel(const omni_matrix &a, int64_t output, int64_t count, int64_t blocks, uint32_t *buffer) {
#if INTEGER_LANES
  if (in_integers(a)) return integer_panel(a, output, count, buffer);
#endif
#if TILES
  if (a.kind == OMNI_FLOAT32 || (a.kind == OMNI_FLOAT32_HALVES && blocks > MANY_BLOCKS)) return tiles_of(a, output, count, buffer);
#endif
  (void)blocks;
  return panel_of(a, output, count, buffer);
}

#if !TILES
// c[count][2 * W], the sums of a panel for the rows of one or two blocks from number `b` on.
inline void any_sums(const omni_matrix &a, const Panel &p, int64_t count, const Lanes &x, int64_t b, float *c, const char *next, int64_t bytes) {
  int64_t block = x.steps * W, rows = x.rows - b * W;
#if INTEGER_LANES
  if (in_integers(a)) return integer_sums(a, p, count, x.block(b), block, rows, c, next, bytes);
#endif
  panel_sums(a.kind, p, count, x.block(b), block, x.steps, rows, c, next, bytes);
}
#endif

#if TILES
// What a panel, one of `panels` that pass the same rows, fetches of the next two blocks of rows.
inline Ahead rows_ahead(const Lanes &x, int64_t b, int64_t number, int64_t panels) {
  int64_t left = blocks_of_rows(x.rows) - b - 2, bytes = (left < 2 ? left : 2) * x.steps * W * 4, share = (bytes / 64 + panels - 1) / panels * 64;
  if (left <= 0 || number * share >= bytes) return {};
  return {(const char *)x.block(b + 2) + number * share, nullptr, bytes - number * share < share ? bytes - number * share : share};
}
#endif

// What is done with the sums of a panel, finish(c, output, count, b): where there are tiles and many rows, while the next panel's are computed.
// Storing tiles waits for them, and vectors work meanwhile; with few rows it waits for weights.
template <class Finish>
struct Later {
  Finish &finish;
  bool few;
  float sums[2][PANEL * 2 * W] __attribute__((aligned(64)));
  int64_t output, count = 0, b, now = 0;

  inline Later(Finish &finish, int64_t blocks) : finish(finish), few(blocks <= 2) {}
  inline void end() {
    if (count) finish(sums[now], output, count, b);
  }
#if TILES
  inline __attribute__((always_inline)) void store(int64_t o, int64_t size, int64_t block, bool more, bool two) {
    if (few) {
      store_tiles(more, two, sums[0]);
      return finish(sums[0], o, size, block);
    }
    end();
    now = 1 - now;
    store_tiles(more, two, sums[now]);
    output = o;
    count = size;
    b = block;
  }
#endif
};

// Calls emit(row, output, count, values) for `count` (at most 16) adjacent outputs between `begin` and `end` of every row.
template <class Emit>
inline void lane_product(const omni_matrix &a, const Lanes &x, int64_t begin, int64_t end, uint32_t *buffer, Emit emit) {
  Source source = source_of(a);
  int64_t blocks = blocks_of_rows(x.rows);
  auto finish = [&](float *c, int64_t o, int64_t count, int64_t b) __attribute__((always_inline)) {
    for (int64_t part = 0; part < count; part += 16) {
      int64_t outs = count - part < 16 ? count - part : 16;
      scale_sums(a, o + part, outs, c + part * 2 * W);
      for (int64_t i = 0; i < (b + 1 < blocks ? 2 : 1); i++) {
        int64_t first = (b + i) * W, rows = x.rows - first < W ? x.rows - first : W;
        emit_rows(c + part * 2 * W + i * W, 2 * W, outs, rows, [&](int64_t row, const float *values) { emit(first + row, o + part, outs, values); });
      }
    }
  };
  Later later(finish, blocks);
  float *sums = later.sums[0];
  bool many = blocks > 2 && blocks * W * x.steps > MANY_WORDS;
  int64_t some = many ? panels_at_once(a.kind, a.in) : 1;
  for (int64_t from = begin; from < end; from += some * PANEL) {
    int64_t stop = end - from < some * PANEL ? end : from + some * PANEL;
#if TILES
    bool chunks = in_turns(a.kind) && blocks <= 2;
#else
    constexpr bool chunks = false;
#endif
    Panel panels[MOST_PANELS];
    for (int64_t o = from; o < stop && !chunks; o += PANEL)
      panels[(o - from) / PANEL] = any_panel(a, o, stop - o < PANEL ? stop - o : PANEL, blocks, buffer + (o - from) * weight_words(a.kind, a.in));
    for (int64_t b = 0; b < blocks; b += 2) {
      bool two = b + 1 < blocks;
      for (int64_t o = from; o < stop; o += PANEL) {
        int64_t count = stop - o < PANEL ? stop - o : PANEL, follows = o + some * PANEL, after = end - follows;
        const Panel &panel = panels[(o - from) / PANEL];
        const char *next = b || after <= 0 ? nullptr : source.memory + follows * source.bytes;
        int64_t bytes = (after < PANEL ? after : PANEL) * source.bytes;
#if TILES
        if (chunks) {
          chunk_sums(a, o, count < 16 ? count : 16, o + 16, count > 16 ? count - 16 : 0, x, two, buffer, sums, after >= PANEL ? follows : 0);
          finish(sums, o, count, b);
        } else {
          Ahead ahead{next, nullptr, bytes};
          if (b && many) ahead = rows_ahead(x, b, (o - from) / PANEL, (stop - from + PANEL - 1) / PANEL);
          tile_sums(a.kind, panel, count > 16 ? panel.words + 16 * panel.stride : nullptr, x.block(b), x.steps * W, x.steps, two, ahead);
          later.store(o, count, b, count > 16, two);
        }
#else
        any_sums(a, panel, count, x, b, sums, next, bytes);
        finish(sums, o, count, b);
#endif
      }
    }
  }
  later.end();
}

// Writes W lanes of `count` adjacent elements from `first` on, c[count][stride], to a block of packed rows. `first` is even.
inline void pack_sums(int64_t kind, const float *c, int64_t stride, int64_t first, int64_t count, uint32_t *block) {
#if TILES
  if (in_parts(kind)) {
    for (int64_t i = 0; i < count; i += 2) {
      int64_t element = first + i;
      __m512i parts[SPLIT];
      split_pairs(_mm512_loadu_ps(c + i * stride), i + 1 < count ? _mm512_loadu_ps(c + (i + 1) * stride) : _mm512_setzero_ps(), parts);
#pragma GCC unroll 3
      for (int part = 0; part < SPLIT; part++)
        write(block + (element / 32 * SPLIT + part) * TILE_WORDS + element % 32 / 2 * W, lane_pairs(parts[part]));
    }
    return;
  }
#endif
#if PAIRS
  if (!of_floats(kind)) {
    for (int64_t i = 0; i < count; i += 2)
      write(block + (first + i) / 2 * W, pair(read<Floats>(c + i * stride), i + 1 < count ? read<Floats>(c + (i + 1) * stride) : Floats{}));
    return;
  }
#endif
  for (int64_t i = 0; i < count; i++) {
    Floats v = read<Floats>(c + i * stride);
    write(block + (first + i) * W, of_floats(kind) ? v : rounded(v));
  }
}

// Zeros after the last of `size` elements of packed rows.
inline void pack_end(int64_t kind, int64_t size, uint32_t *block) {
  if (in_parts(kind)) {
    for (int64_t part = 0, used = (size % 32 + 1) / 2; size % 32 && part < SPLIT; part++)
      memset(block + (size / 32 * SPLIT + part) * TILE_WORDS + used * W, 0, (16 - used) * W * sizeof(uint32_t));
    return;
  }
  int64_t used = in_pairs(kind) ? (size + 1) / 2 : size;
  memset(block + used * W, 0, (words_of(kind, size) - used) * W * sizeof(uint32_t));
}

// silu(gate) * up of the units of `part` for all rows, packed for the product with `then`; not yet rounded where that is in integers. `a`: gates
// above ups. `part` begins at an even unit. `factors`: of each row, or null.
inline void gated_product(const omni_matrix &a, const Lanes &x, Range part, const omni_matrix &then, uint32_t *to, const float *factors,
                          uint32_t *buffer) {
  int64_t units = a.out / 2, blocks = blocks_of_rows(x.rows), out_size = words_of(then.kind, units) * W;
  int64_t kind = in_integers(then) ? (int64_t)OMNI_FLOAT32 : then.kind;
  Source source = source_of(a);
  auto finish = [&](float *c, int64_t u, int64_t count, int64_t b) __attribute__((always_inline)) {
    scale_sums(a, u, count, c);
    scale_sums(a, units + u, count, c + UNITS * 2 * W);
    for (int64_t i = 0; i < (b + 1 < blocks ? 2 : 1); i++) {
      for (int64_t o = 0; o < count; o++) {
        float *gate = c + o * 2 * W + i * W;
        Floats active = silu(read<Floats>(gate)) * read<Floats>(gate + UNITS * 2 * W);
        write(gate, factors ? active * read<Floats>(factors + (b + i) * W) : active);
      }
      pack_sums(kind, c + i * W, 2 * W, u, count, to + (b + i) * out_size);
    }
  };
  Later later(finish, blocks);
  float *sums = later.sums[0];
  bool many = blocks > 2 && blocks * W * x.steps > MANY_WORDS;
  int64_t some = many ? panels_at_once(a.kind, a.in) : 1;
  for (int64_t from = part.begin; from < part.end; from += some * UNITS) {
    int64_t stop = part.end - from < some * UNITS ? part.end : from + some * UNITS;
#if TILES
    if (in_turns(a.kind) && blocks <= 2) {
      chunk_sums(a, from, stop - from, units + from, stop - from, x, blocks == 2, buffer, sums, part.end - stop >= UNITS ? stop : 0);
      finish(sums, from, stop - from, 0);
      continue;
    }
#endif
    Panel panels[2 * MOST_PANELS];
    for (int64_t u = from; u < stop; u += UNITS) {
      int64_t count = stop - u < UNITS ? stop - u : UNITS, at = (u - from) / UNITS * 2;
      panels[at] = any_panel(a, u, count, blocks, buffer + at * UNITS * weight_words(a.kind, a.in));
      panels[at + 1] = any_panel(a, units + u, count, blocks, buffer + (at + 1) * UNITS * weight_words(a.kind, a.in));
    }
    for (int64_t b = 0; b < blocks; b += 2) {
      for (int64_t u = from; u < stop; u += UNITS) {
        const Panel &gates = panels[(u - from) / UNITS * 2], &ups = (&gates)[1];
        int64_t count = stop - u < UNITS ? stop - u : UNITS, follows = u + some * UNITS, after = part.end - follows;
        const char *next = b || after <= 0 ? nullptr : source.memory + follows * source.bytes, *next_up = next ? next + units * source.bytes : nullptr;
        int64_t bytes = (after < UNITS ? after : UNITS) * source.bytes;
#if TILES
        Ahead ahead{next, next_up, bytes};
        if (b && many) ahead = rows_ahead(x, b, (u - from) / UNITS, (stop - from + UNITS - 1) / UNITS);
        tile_sums(a.kind, gates, ups.words, x.block(b), x.steps * W, x.steps, b + 1 < blocks, ahead);
        later.store(u, count, b, true, b + 1 < blocks);
#else
        any_sums(a, gates, count, x, b, sums, next, bytes);
        any_sums(a, ups, count, x, b, sums + UNITS * 2 * W, next_up, bytes);
        finish(sums, u, count, b);
#endif
      }
    }
  }
  later.end();
  if (part.end == units && !in_integers(then))
    for (int64_t b = 0; b < blocks; b++) pack_end(kind, units, to + b * out_size);
}

}  // namespace
