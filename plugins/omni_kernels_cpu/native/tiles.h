// Products of tiles of bfloat16: of rows and weights as they are packed, or of parts of floats.
#pragma once
#include "panels.h"

namespace {

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

// Memory that is fetched in the turns of a loop, for what is computed after it: `bytes` of one or two places, or none.
struct Ahead {
  const char *first = nullptr, *second = nullptr;
  int64_t bytes = 0;
};

// What is split of a tile's products: nothing, inputs, or weights too.
enum { PLAIN, INPUTS, ALL };

// Sums of M * 16 outputs, the second 16 at `after`, for V blocks of rows. Of parts all products are added but those that float32 would not keep,
// in an order in which those of parts that are zero can be left out. The sums begin at zero if this is the `first` part of the inputs; they stay
// in the tiles.
template <int KIND, int M, int V>
__attribute__((noinline)) void tile_panel(const uint32_t *a, const uint32_t *after, int64_t stride, int64_t step, const uint32_t *x, int64_t block,
                                          int64_t turns, Ahead ahead, bool first) {
  __asm__ volatile("" ::: "memory");  // compilers take it that tiles read nothing
  if (first) {
    _tile_zero(0);
    if (V > 1) _tile_zero(1);
    if (M > 1) _tile_zero(2);
    if (M > 1 && V > 1) _tile_zero(3);
  }
  constexpr int PARTS = KIND == PLAIN ? 1 : SPLIT, PRODUCTS = KIND == ALL ? 6 : PARTS;
  const char *next = ahead.first, *later = ahead.second;
  int64_t steps = PRODUCTS * turns, lines = next && steps ? (ahead.bytes / 64 + steps - 1) / steps : 0;  // a few at once: many would wait
  // Adds the product of a part of the weights and one of the inputs; those that are in the tiles already are not loaded.
  auto add = [&](int weights, int inputs, bool load_weights, bool load_inputs) __attribute__((always_inline)) {
    if (load_weights) _tile_loadd(4, a + weights * step, stride * 4);
    if (load_inputs) _tile_stream_loadd(6, x + inputs * TILE_WORDS, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (V > 1 && load_inputs) _tile_stream_loadd(7, x + block + inputs * TILE_WORDS, 64);
    if (V > 1) _tile_dpbf16ps(1, 4, 7);
    if (M > 1 && load_weights) _tile_loadd(5, after + weights * step, stride * 4);
    if (M > 1) _tile_dpbf16ps(2, 5, 6);
    if (M > 1 && V > 1) _tile_dpbf16ps(3, 5, 7);
    for (int64_t line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, 2);
    for (int64_t line = 0; later && line < lines; line++, later += 64) __builtin_prefetch(later, 0, 2);
  };
  for (int64_t turn = 0; turn < turns; turn++) {
    add(0, 0, true, true);
    if (KIND == ALL) {
      add(1, 0, true, false);
      add(2, 0, true, false);
      add(1, 1, true, true);
      add(0, 1, true, false);
    } else if (KIND == INPUTS) {
      add(0, 1, false, true);
    }
    if (KIND != PLAIN) add(0, 2, false, true);
    a += (KIND == ALL ? SPLIT : 1) * step;
    after += (KIND == ALL ? SPLIT : 1) * step;
    x += PARTS * TILE_WORDS;
  }
}

// Stores the sums of `more` than 16 outputs for one or `two` blocks of rows, c[outputs][2 * W].
inline void store_tiles(bool more, bool two, float *c) {
  _tile_stored(0, c, 128);
  if (two) _tile_stored(1, c + 16, 128);
  if (more) _tile_stored(2, c + 16 * 32, 128);
  if (more && two) _tile_stored(3, c + 16 * 32 + 16, 128);
}

typedef void (*TilePanel)(const uint32_t *a, const uint32_t *after, int64_t stride, int64_t step, const uint32_t *x, int64_t block, int64_t turns,
                          Ahead ahead, bool first);

template <int KIND>
inline TilePanel tile_panel_of(bool more, bool two) {
  return more ? (two ? tile_panel<KIND, 2, 2> : tile_panel<KIND, 2, 1>) : (two ? tile_panel<KIND, 1, 2> : tile_panel<KIND, 1, 1>);
}

// Steps of a tile's 32 inputs of rows with so many words.
inline int64_t turns_of(int64_t kind, int64_t words) { return words / (in_parts(kind) ? 16 * SPLIT : 16); }

// Sums of up to 16 outputs of a panel, and of up to 16 at `after` if it is given, for one or `two` blocks of rows; they stay in the tiles.
inline void tile_sums(int64_t kind, const Panel &p, const uint32_t *after, const uint32_t *x, int64_t block, int64_t steps, bool two, const Ahead &ahead) {
  TilePanel panel = kind == OMNI_FLOAT32          ? tile_panel_of<ALL>(after, two)
                    : kind == OMNI_FLOAT32_HALVES ? tile_panel_of<INPUTS>(after, two)
                                                  : tile_panel_of<PLAIN>(after, two);
  panel(p.words, after, p.stride, p.step, x, block, turns_of(kind, steps), ahead, true);
}
#else
struct Tiles {};
#endif

}  // namespace
