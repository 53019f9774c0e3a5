// The gated feed-forward block, dense or of the chosen experts of each row, in two phases with a wait of the team between them.
#pragma once
#include "norms.h"
#include "product.h"
#include "team.h"

namespace {

// Rows as inputs of a product with `a`, [rows, size]; or `rows` of them, whose numbers are `which`.
inline const void **prepare_rows(const omni_matrix &a, const float *x, int64_t rows, int64_t size, Scratch &own, const int32_t *which = nullptr) {
  const void **prepared = own.take<const void *>(rows);
  int64_t kind = a.kind;
  auto from = [&](int64_t row) { return x + (which ? which[row] : row) * size; };
  if (multiplies_integers(a)) {
    int64_t bytes = integer_bytes(kind, size);
    char *to = own.take<char>(rows * bytes);
    for (int64_t row = 0; row < rows; row++, to += bytes) {
      if (kind == OMNI_INT4)
        prepare_units(from(row), size, (Unit *)to);
      else
        prepare_bytes(from(row), size, (ByteRow *)to);
      prepared[row] = to;
    }
    return prepared;
  }
  float *buffer = of_floats(kind) ? nullptr : own.take<float>(rows * size);
  for (int64_t row = 0; row < rows; row++)
    prepared[row] = prepare(kind, from(row), size, buffer ? buffer + row * size : nullptr);
  return prepared;
}

// gate and up of units `part` of some rows; `active` and `ups` are the rows' [units] each.
inline void gate_and_up(const omni_matrix &a, const void *const *xs, int rows, Range part, float *const *active, float *const *ups,
                        Scratch own) {
  int64_t units = a.out / 2;
  product(a, xs, rows, part.begin, part.end, own, [&](int row, int64_t o, float value) { active[row][o] = value; });
  product(a, xs, rows, units + part.begin, units + part.end, own, [&](int row, int64_t o, float value) { ups[row][o - units] = value; });
  int64_t size = part.end - part.begin;
  for (int row = 0; row < rows; row++) {
    float *gate = active[row] + part.begin, *up = ups[row] + part.begin;
    FOR_VECTORS(i, size) store_at(gate, i, size, silu(load_at(gate, i, size)) * load_at(up, i, size));
  }
}

// The rows of each expert: `pairs` of row and choice, sorted by expert and, within one, by row. Choices of other experts, below 0 or from
// `experts` on, belong to none.
struct Groups {
  int64_t experts, top_k, pairs;
  int32_t *begins;     // [experts + 1] into `order`
  int32_t *order;      // [pairs]: row * top_k + choice
  const float *weights; // [pairs], by row * top_k + choice

  // Without `chosen` only takes the memory.
  static Groups make(const int32_t *chosen, const float *weights, int64_t rows, int64_t top_k, int64_t experts, Scratch &own) {
    Groups g{experts, top_k, rows * top_k, own.take<int32_t>(experts + 1), own.take<int32_t>(rows * top_k), weights};
    int32_t *next = own.take<int32_t>(experts);
    if (!chosen) return g;
    memset(g.begins, 0, (experts + 1) * sizeof(int32_t));
    auto known = [&](int64_t pair) { return chosen[pair] >= 0 && chosen[pair] < experts; };
    for (int64_t pair = 0; pair < g.pairs; pair++)
      if (known(pair)) g.begins[chosen[pair] + 1]++;
    for (int64_t e = 0; e < experts; e++) {
      g.begins[e + 1] += g.begins[e];
      next[e] = g.begins[e];
    }
    for (int64_t pair = 0; pair < g.pairs; pair++)
      if (known(pair)) g.order[next[chosen[pair]]++] = pair;
    return g;
  }
};

// Softmax over all experts, and the `top_k` largest of a row; of equal ones the lower number.
inline void choose(const float *logits, int64_t experts, int64_t top_k, bool normalize, float *buffer, int32_t *chosen, float *weights) {
  float largest = logits[0], total = 0, taken = 0;
  for (int64_t e = 1; e < experts; e++) largest = logits[e] > largest ? logits[e] : largest;
  FOR_VECTORS(i, experts) store_at(buffer, i, experts, exponential(load_at(logits, i, experts) - largest));
  for (int64_t e = 0; e < experts; e++) total += buffer[e];
  for (int64_t k = 0; k < top_k; k++) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; e++) {
      bool used = false;
      for (int64_t j = 0; j < k; j++) used |= chosen[j] == e;
      if (!used && (best < 0 || buffer[e] > buffer[best])) best = e;
    }
    chosen[k] = (int32_t)best;
    weights[k] = buffer[best] / total;
    taken += weights[k];
  }
  if (normalize)
    for (int64_t k = 0; k < top_k; k++) weights[k] /= taken;
}

struct Mixture {
  const omni_matrix *experts;  // gate_up and down in turn
  int64_t units;
  float *active, *ups;  // [pairs, units], shared by the team
};

// First phase. `xs`: the rows' prepared inputs.
inline void enter_experts(const Mixture &m, const Groups &g, const void *const *xs, Scratch own, const omni_team *team) {
  const void **inputs = own.take<const void *>(g.pairs);
  float **active = own.take<float *>(g.pairs), **ups = own.take<float *>(g.pairs);
  int64_t busy = 0, at = 0;
  for (int64_t e = 0; e < g.experts; e++) busy += g.begins[e + 1] > g.begins[e];
  Range mine = share(busy * m.units, 1, team);
  for (int64_t e = 0; e < g.experts; e++) {
    int64_t rows = g.begins[e + 1] - g.begins[e];
    if (!rows) continue;
    Range part = {mine.begin > at ? mine.begin - at : 0, mine.end - at < m.units ? mine.end - at : m.units};
    at += m.units;
    if (part.begin >= part.end) continue;
    for (int64_t i = 0; i < rows; i++) {
      int64_t pair = g.order[g.begins[e] + i];
      inputs[i] = xs[pair / g.top_k];
      active[i] = m.active + pair * m.units;
      ups[i] = m.ups + pair * m.units;
    }
    gate_and_up(m.experts[2 * e], inputs, (int)rows, part, active, ups, own);
  }
}

// Second phase: adds the weighted outputs to `total`, [rows, out], in the order of the experts' numbers.
inline void leave_experts(const Mixture &m, const Groups &g, float *total, Scratch own, const omni_team *team) {
  int64_t out = m.experts[1].out;
  Range mine = share(out, 8, team);
  const void **inputs = prepare_rows(m.experts[1], m.active, g.begins[g.experts], m.units, own, g.order);
  for (int64_t e = 0; e < g.experts; e++) {
    const int32_t *pairs = g.order + g.begins[e];
    int64_t rows = g.begins[e + 1] - g.begins[e];
    if (!rows) continue;
    product(m.experts[2 * e + 1], inputs + g.begins[e], (int)rows, mine.begin, mine.end, own, [&](int row, int64_t o, float value) {
      total[pairs[row] / g.top_k * out + o] += g.weights[pairs[row]] * value;
    });
  }
}

// The operation `experts` on stacked weights of the rows' dtype.
template <class T>
void experts(const omni_experts *a, const omni_team *team) {
  int64_t pairs = a->rows * a->top_k, kind = a->dtype;
  Scratch shared{team->shared}, own{team->own};
  float *active = shared.take<float>(pairs * a->inner), *ups = shared.take<float>(pairs * a->inner);
  float *total = shared.take<float>(a->rows * a->hidden);
  float *wide = own.take<float>(a->rows * a->hidden), *weights = own.take<float>(pairs);
  int32_t *chosen = own.take<int32_t>(pairs);
  omni_matrix *matrices = own.take<omni_matrix>(2 * a->experts);
  const T *gate_up = (const T *)a->gate_up, *down = (const T *)a->down;
  for (int64_t e = 0; e < a->experts; e++) {
    matrices[2 * e] = {gate_up + e * 2 * a->inner * a->hidden, nullptr, nullptr, 2 * a->inner, a->hidden, kind, nullptr, 0, 0};
    matrices[2 * e + 1] = {down + e * a->hidden * a->inner, nullptr, nullptr, a->hidden, a->inner, kind, nullptr, 0, 0};
  }
  for (int64_t pair = 0; pair < pairs; pair++) {
    chosen[pair] = (int32_t)(a->chosen[pair] - a->first);
    weights[pair] = Element<T>::one(((const T *)a->weights)[pair]);
  }
  to_floats((const T *)a->x, a->rows * a->hidden, wide);
  Groups groups = Groups::make(chosen, weights, a->rows, a->top_k, a->experts, own);
  Mixture mixture{matrices, a->inner, active, ups};
  const void **xs = prepare_rows(matrices[0], wide, a->rows, a->hidden, own);
  enter_experts(mixture, groups, xs, own, team);
  Range mine = share(a->hidden, 8, team);
  for (int64_t row = 0; row < a->rows; row++) memset(total + row * a->hidden + mine.begin, 0, (mine.end - mine.begin) * sizeof(float));
  wait(team);
  leave_experts(mixture, groups, total, own, team);
  for (int64_t row = 0; row < a->rows; row++)
    from_floats(total + row * a->hidden + mine.begin, mine.end - mine.begin, (T *)a->output + row * a->hidden + mine.begin);
}

}  // namespace
