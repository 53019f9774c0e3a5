// A product of few rows of floats with a matrix of any kind, and of any number of rows with weights in groups.
#pragma once
#include "feed_forward.h"
#include "lane_products.h"

namespace {

constexpr int64_t STEP_ROWS = 32;  // of the largest decode step; more rows are a prompt's

// Calls emit(row, output, value) for this thread's outputs of every row of `x`, [rows, in].
template <class Emit>
inline void multiply_rows(const omni_matrix &a, const float *x, int64_t rows, Scratch own, const omni_team *team, Emit emit) {
  if (a.group_scales && !multiplies_integers(a) && rows > STEP_ROWS) {
    int64_t steps = words_of(a.kind, a.in);
    uint32_t *packed = own.take<uint32_t>(blocks_of_rows(rows) * W * steps), *buffer = own.take<uint32_t>(panel_words(a.kind, a.in));
    for (int64_t row = 0; row < rows; row += W) {
      const float *some[W];
      int64_t count = rows - row < W ? rows - row : W;
      for (int64_t i = 0; i < count; i++) some[i] = x + (row + i) * a.in;
      pack_block(a.kind, some, count, a.in, packed + row * steps);
    }
    Range part = share(a.out, 16, team);
    Tiles tiles;
    (void)tiles;
    lane_product(a, {packed, rows, steps}, part.begin, part.end, buffer, [&](int64_t row, int64_t o, int64_t count, const float *values) {
      for (int64_t i = 0; i < count; i++) emit(row, o + i, values[i]);
    });
    return;
  }
  const void **xs = prepare_rows(a, x, rows, a.in, own);
  Range mine = share(a.out, 8, team);
  product(a, xs, (int)rows, mine.begin, mine.end, own, emit);
}

}  // namespace
