// A decode step of a whole decoder: all layers and the last norm, of one row per request. A team computes it together; each phase of a
// layer is shared by outputs, or by rows and key heads, and ends with a wait.
#pragma once
#include "attention.h"
#include "feed_forward.h"

namespace {

template <class T>
struct Decoder {
  const omni_stack *stack;
  const omni_step *step;
  const omni_team *team;
  Scratch own;
  float *x, *projected, *mixed, *logits, *active, *ups, *dense_active, *dense_ups, *cos, *sin;

  int64_t rows() const { return step->rows; }

  const float *normed(const float *weight, Scratch &scratch) {
    float *out = scratch.take<float>(rows() * stack->hidden);
    for (int64_t row = 0; row < rows(); row++)
      normalize(x + row * stack->hidden, weight, (float)stack->eps, stack->hidden, out + row * stack->hidden);
    return out;
  }

  // y = matrix @ input for this thread's outputs; or y += .
  void project(const omni_matrix &a, const float *input, float *y, bool add, Scratch scratch) {
    const void **xs = prepare_rows(a, input, rows(), a.in, scratch);
    Range mine = share(a.out, 8, team);
    if (add)
      product(a, xs, (int)rows(), mine.begin, mine.end, scratch, [&](int row, int64_t o, float value) { y[row * a.out + o] += value; });
    else
      product(a, xs, (int)rows(), mine.begin, mine.end, scratch, [&](int row, int64_t o, float value) { y[row * a.out + o] = value; });
  }

  void attention_of(const omni_layer &layer, Scratch scratch) {
    int64_t heads = stack->heads, kv_heads = stack->kv_heads, width = stack->head_dim, group = heads / kv_heads;
    int64_t stride = kv_heads * width, run = step->run;
    float *query = scratch.take<float>(heads * width), *key = scratch.take<float>(width), *scores = (float *)scratch.next;
    float scale = 1.0f / __builtin_sqrtf((float)width), eps = (float)stack->eps;
    Range mine = share(rows() / run * kv_heads, 1, team);
    in_rows(mine, kv_heads, [&](int64_t request, int64_t head, int64_t some) {
      // Positions of a request are one thread's, in order: a later one reads the keys of those before it.
      for (int64_t row = request * run; row < (request + 1) * run; row++) {
        const float *from = projected + row * (heads + 2 * kv_heads) * width, *c = cos + row * width, *s = sin + row * width;
        int64_t count = step->lengths[row], first = head * group;
        Pages place{step->pages + row * step->page_stride, step->block_size};
        T *keys = (T *)layer.keys + head * width, *values = (T *)layer.values + head * width;
        int64_t slot = place(count - 1, count).slot * stride;
        for (int64_t h = 0; h < some; h++) {
          int64_t at = (heads + head + h) * width;
          normalize_rotate(from + at, norm_of(layer, at), c, s, eps, width, stack->pairs, key);
          from_floats(key, width, keys + slot + h * width);
        }
        from_floats(from + (heads + kv_heads + head) * width, some * width, values + slot);
        for (int64_t q = 0; q < some * group; q++) {
          int64_t at = (first + q) * width;
          normalize_rotate(from + at, norm_of(layer, at), c, s, eps, width, stack->pairs, query + q * width);
        }
        for (int64_t i = 0; i < some * group * width; i++) query[i] *= scale;
        const T *after = row + 1 < rows() ? keys + step->pages[(row + 1) * step->page_stride] * step->block_size * stride : keys;
        attend(query, some, group, width, (const T *)keys, (const T *)values, stride, place, count, after, scores,
               mixed + (row * heads + first) * width);
      }
    });
  }

  void dense(const omni_layer &layer, const float *normed, const float *gates, Scratch scratch) {
    int64_t units = layer.gate_up.out / 2;
    Range mine = share(units, 8, team);
    Scratch inner = scratch;
    float **a = inner.take<float *>(rows()), **u = inner.take<float *>(rows());
    for (int64_t row = 0; row < rows(); row++) {
      a[row] = dense_active + row * units;
      u[row] = dense_ups + row * units;
    }
    const void **xs = prepare_rows(layer.gate_up, normed, rows(), stack->hidden, inner);
    gate_and_up(layer.gate_up, xs, (int)rows(), mine, a, u, inner);
    if (gates)  // the gate of a shared expert scales its output, which is linear in its units
      for (int64_t row = 0; row < rows(); row++)
        for (int64_t i = mine.begin; i < mine.end; i++) a[row][i] *= gates[row];
  }

  void feed_forward(const omni_layer &layer) {
    Scratch scratch = own;
    const float *normed = this->normed(layer.post_norm, scratch);
    if (!layer.router.weight) {
      dense(layer, normed, nullptr, scratch);
      wait(team);
      project(layer.down, dense_active, x, true, scratch);
      wait(team);
      return;
    }
    int64_t count = layer.router.out;
    project(layer.router, normed, logits, false, scratch);
    wait(team);
    float *weights = scratch.take<float>(rows() * layer.top_k), *buffer = scratch.take<float>(count);
    int32_t *chosen = scratch.take<int32_t>(rows() * layer.top_k);
    for (int64_t row = 0; row < rows(); row++)
      choose(logits + row * count, count, layer.top_k, layer.normalize, buffer, chosen + row * layer.top_k, weights + row * layer.top_k);
    Groups groups = Groups::make(chosen, weights, rows(), layer.top_k, count, scratch);
    Mixture mixture{layer.experts, layer.experts[0].out / 2, active, ups};
    {
      Scratch inner = scratch;
      const void **xs = prepare_rows(layer.experts[0], normed, rows(), stack->hidden, inner);
      enter_experts(mixture, groups, xs, inner, team);
    }
    if (layer.shared_gate.weight) {
      Scratch inner = scratch;
      float *gates = inner.take<float>(rows());
      const void **xs = prepare_rows(layer.shared_gate, normed, rows(), stack->hidden, inner);
      product(layer.shared_gate, xs, (int)rows(), 0, 1, inner, [&](int row, int64_t, float value) {
        gates[row] = 1.0f / (1.0f + exponential(broadcast(-value))[0]);
      });
      dense(layer, normed, gates, inner);
    }
    wait(team);
    leave_experts(mixture, groups, x, scratch, team);
    if (layer.shared_gate.weight) project(layer.down, dense_active, x, true, scratch);
    wait(team);
  }

  void store(const float *from, void *to, Range mine) {
    from_floats(from + mine.begin, mine.end - mine.begin, (T *)to + mine.begin);
  }

  void run() {
    int64_t hidden = stack->hidden, heads = stack->heads, kv_heads = stack->kv_heads, width = stack->head_dim, pairs = 0, units = 0, dense = 0, experts = 0;
    for (int64_t l = 0; l < stack->layer_count; l++) {
      const omni_layer &layer = stack->layers[l];
      if (layer.gate_up.weight && layer.gate_up.out / 2 > dense) dense = layer.gate_up.out / 2;
      if (!layer.router.weight) continue;
      if (layer.router.out > experts) experts = layer.router.out;
      if (rows() * layer.top_k > pairs) pairs = rows() * layer.top_k;
      if (layer.experts[0].out / 2 > units) units = layer.experts[0].out / 2;
    }
    Scratch shared{team->shared};
    own = Scratch{team->own};
    x = shared.take<float>(rows() * hidden);
    projected = shared.take<float>(rows() * (heads + 2 * kv_heads) * width);
    mixed = shared.take<float>(rows() * heads * width);
    logits = shared.take<float>(rows() * experts);
    active = shared.take<float>(pairs * units);
    ups = shared.take<float>(pairs * units);
    dense_active = shared.take<float>(rows() * dense);
    dense_ups = shared.take<float>(rows() * dense);
    cos = own.take<float>(rows() * width);
    sin = own.take<float>(rows() * width);
    to_floats((const T *)step->cos, rows() * width, cos);
    to_floats((const T *)step->sin, rows() * width, sin);
    Range mine = share(rows() * hidden, 8, team);
    to_floats((const T *)step->x + mine.begin, mine.end - mine.begin, x + mine.begin);
    wait(team);
    for (int64_t l = 0; l < stack->layer_count; l++) {
      const omni_layer &layer = stack->layers[l];
      if (step->captured && step->capture == l) store(x, step->captured, mine);
      {
        Scratch scratch = own;
        const float *input = normed(layer.input_norm, scratch);
        project(layer.qkv, input, projected, false, scratch);
      }
      wait(team);
      attention_of(layer, own);
      wait(team);
      project(layer.output, mixed, x, true, own);
      wait(team);
      feed_forward(layer);
    }
    Range last = share(rows(), 1, team);
    float *out = own.take<float>(hidden);
    for (int64_t row = last.begin; row < last.end; row++) {
      normalize(x + row * hidden, stack->norm, (float)stack->eps, hidden, out);
      from_floats(out, hidden, (T *)step->output + row * hidden);
    }
  }
};

template <class T>
void decode(const omni_stack *stack, const omni_step *step, const omni_team *team) {
  Decoder<T> decoder{};
  decoder.stack = stack;
  decoder.step = step;
  decoder.team = team;
  decoder.run();
}

}  // namespace
