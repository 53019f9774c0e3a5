// Root mean square norms and rotary positions, in float32.
#pragma once
#include "team.h"
#include "vector.h"

namespace {

inline float inverse_rms(const float *x, int64_t size, float eps) {
  Floats squares = {};
  FOR_VECTORS(i, size) {
    Floats v = load_at(x, i, size);
    squares += v * v;
  }
  return 1.0f / __builtin_sqrtf(sum(squares) / size + eps);
}

inline void normalize(const float *x, const float *weight, float eps, int64_t size, float *y) {
  Floats scale = broadcast(inverse_rms(x, size, eps));
  FOR_VECTORS(i, size) store_at(y, i, size, load_at(x, i, size) * scale * load_at(weight, i, size));
}

// The norm of a layer's head, `at` elements after that of the first one; null: it has none.
inline const float *norm_of(const omni_layer &layer, int64_t at) { return layer.head_norms ? layer.head_norms + at : nullptr; }

// One head, normalised, weighed and rotated; without a `weight` rotated only. `pairs`: neighbouring values turn, else the halves. `y` may be `x`;
// the size is even.
inline void normalize_rotate(const float *x, const float *weight, const float *cos, const float *sin, float eps, int64_t size, bool pairs, float *y) {
  int64_t half = size / 2;
  if (pairs) {
    float scale = weight ? inverse_rms(x, size, eps) : 1.0f;
    for (int64_t i = 0; i < half; i++) {
      float a = x[2 * i] * scale * (weight ? weight[2 * i] : 1.0f), b = x[2 * i + 1] * scale * (weight ? weight[2 * i + 1] : 1.0f);
      y[2 * i] = a * cos[i] - b * sin[i];
      y[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  if (!weight) {
    FOR_VECTORS(i, half) {
      Floats a = load_at(x, i, half), b = load_at(x + half, i, half);
      store_at(y, i, half, a * load_at(cos, i, half) - b * load_at(sin, i, half));
      store_at(y + half, i, half, b * load_at(cos + half, i, half) + a * load_at(sin + half, i, half));
    }
    return;
  }
  float scale = inverse_rms(x, size, eps);
  FOR_VECTORS(i, half) {
    Floats a = load_at(x, i, half) * scale * load_at(weight, i, half);
    Floats b = load_at(x + half, i, half) * scale * load_at(weight + half, i, half);
    store_at(y, i, half, a * load_at(cos, i, half) - b * load_at(sin, i, half));
    store_at(y + half, i, half, b * load_at(cos + half, i, half) + a * load_at(sin + half, i, half));
  }
}

template <class T>
void rms_norm(const T *x, const T *add, const T *weight, float eps, int64_t rows, int64_t size, T *total, T *y, const omni_team *team) {
  Range mine = share(rows, 1, team);
  Scratch own{team->own};
  float *wide = own.take<float>(size), *weights = own.take<float>(size);
  to_floats(weight, size, weights);
  for (int64_t row = mine.begin; row < mine.end; row++) {
    to_floats(x + row * size, size, wide);
    if (add) {
      FOR_VECTORS(i, size) {
        Floats v = load_at(wide, i, size) + load_at(add + row * size, i, size);
        store_at(total + row * size, i, size, v);
        store_at(wide, i, size, load_at(total + row * size, i, size));
      }
    }
    normalize(wide, weights, eps, size, wide);
    from_floats(wide, size, y + row * size);
  }
}

}  // namespace
