// The choice of one id from a row of logits: the best, or the inverse of the cumulative distribution that top-k and top-p leave, in order of id.
#pragma once
#include "team.h"
#include "vector.h"

namespace {

// Moves heap[at] down until no child is smaller.
inline void sift(float *heap, int64_t count, int64_t at) {
  float value = heap[at];
  for (int64_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && heap[child + 1] < heap[child]) child++;
    if (heap[child] >= value) break;
    heap[at] = heap[child];
  }
  heap[at] = value;
}

// The `count` largest of `size` values, descending.
inline void largest(const float *values, int64_t size, int64_t count, float *heap) {
  memcpy(heap, values, count * sizeof(float));
  for (int64_t at = count / 2; at-- > 0;) sift(heap, count, at);
  for (int64_t i = count; i < size; i++)
    if (values[i] > heap[0]) {
      heap[0] = values[i];
      sift(heap, count, 0);
    }
  for (int64_t left = count - 1; left > 0; left--) {
    float least = heap[0];
    heap[0] = heap[left];
    heap[left] = least;
    sift(heap, left, 0);
  }
}

// The number of the largest logit, the first of equal ones; -1 if it is not finite or a logit is NaN.
inline int64_t best_of(const float *logits, int64_t size) {
  Floats most = broadcast(-__builtin_inff()), odd = {};
  int64_t i = 0;
  for (; i + W <= size; i += W) {
    Floats v = read<Floats>(logits + i);
    most = v > most ? v : most;
    odd = v == v ? odd : v;
  }
  float top = most[0];
  bool nan = false;
  for (int lane = 0; lane < W; lane++) {
    top = most[lane] > top ? most[lane] : top;
    nan |= odd[lane] != odd[lane];
  }
  for (; i < size; i++) {
    top = logits[i] > top ? logits[i] : top;
    nan |= logits[i] != logits[i];
  }
  if (nan || !(top - top == 0)) return -1;
  for (i = 0; logits[i] != top; i++) {}
  return i;
}

// Ids that tie with the last one that top-k or top-p keeps are kept too. Writes over the logits.
inline int64_t draw(float *logits, int64_t size, float temperature, int64_t top_k, float top_p, double uniform, Scratch own) {
  int64_t best = best_of(logits, size);
  if (best < 0 || !(temperature > 0)) return best;
  float heat = temperature > 1e-5f ? temperature : 1e-5f, top = logits[best] / heat, least = -__builtin_inff();
  float *weights = own.take<float>(size + W), *sorted = own.take<float>(size + W);
  for (int64_t i = 0; i < size; i++) logits[i] /= heat;
  FOR_VECTORS(i, size) store_at(weights, i, size, exponential(load_at(logits, i, size) - top));
  int64_t kept = top_k > 0 && top_k < size ? top_k : size;
  if (kept < size || top_p < 1) {
    largest(logits, size, kept, sorted);
    least = sorted[kept - 1];
  }
  double total = 0, before = 0;
  for (int64_t i = 0; i < size; i++)
    if (logits[i] >= least) total += weights[i];
  if (top_p < 1)
    for (int64_t i = 0; i < kept && (i == 0 || before < top_p * total); i++) {
      least = sorted[i];
      before += exponential(broadcast(sorted[i] - top))[0];
    }
  double sum = 0, target = 0;
  int64_t last = best;
  for (int64_t i = 0; i < size; i++)
    if (logits[i] >= least) {
      target += weights[i];
      last = i;
    }
  target *= uniform;
  for (int64_t i = 0; i < size; i++) {
    if (!(logits[i] >= least)) continue;
    sum += weights[i];
    if (sum > target) return i;
  }
  return last;
}

}  // namespace
