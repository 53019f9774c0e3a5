// All layers and the last norm of prompts: packed runs of adjacent positions of requests. Also steps of single rows, where tiles multiply
// few rows as fast as one. A team computes it together; each phase of a layer ends with a wait.
#pragma once
#include "feed_forward.h"
#include "prompt_attention.h"

namespace {

struct PromptRun {
  int64_t row, count;
};

inline void put(float *to, const float *values, int64_t count) {
  if (count == 16)
    for (int64_t i = 0; i < 16; i += W) write(to + i, read<Floats>(values + i));
  else
    memcpy(to, values, count * sizeof(float));
}

inline void put_sum(float *to, const float *values, int64_t count, float share = 1.0f) {
  int64_t i = 0;
  for (; i + W <= count; i += W) write(to + i, read<Floats>(to + i) + read<Floats>(values + i) * share);
  for (; i < count; i++) to[i] += values[i] * share;
}

template <class T>
struct Prefill {
  // Phases of a layer that divide() divides: qkv, attention, output, router, two of experts, two of a dense block.
  static constexpr int64_t DIVIDED = 8;
  static constexpr int64_t PARTS = 8;          // of a thread, unless they would be too short
  static constexpr int64_t LEAST = 4 * PANEL;  // outputs of a part: a part's first panel is not fetched ahead
  const omni_stack *stack;
  const omni_step *step;
  const omni_team *team;
  float *x, *normed, *projected, *mixed, *logits, *gates, *shares;
  int32_t *chosen;
  uint32_t *packed, *active, *buffer;  // rows as inputs of the next product; units of the feed-forward block; a panel's weights
  PromptRun *runs;
  int64_t run_count;
  int64_t *taken, phase;  // of each divided phase how much is taken; number of the next one
  Scratch own;

  int64_t rows() const { return step->rows; }
  int64_t projected_width() const { return (stack->heads + 2 * stack->kv_heads) * stack->head_dim; }

  struct Sizes {
    int64_t experts = 0, top_k = 0, pack = 0, active = 0, panel = 0;
    void take(const omni_matrix &a, int64_t blocks, bool units) {
      if (!a.weight) return;
      int64_t words = blocks * W * words_of(a.kind, a.in), some = panel_words(a.kind, a.in), &least = units ? active : pack;
      least = words > least ? words : least;
      panel = some > panel ? some : panel;
    }
  };

  Sizes sizes() const {
    Sizes s;
    int64_t blocks = blocks_of_rows(rows());
    for (int64_t l = 0; l < stack->layer_count; l++) {
      const omni_layer &layer = stack->layers[l];
      const omni_matrix *each[] = {&layer.qkv, &layer.output, &layer.gate_up, &layer.shared_gate, &layer.router};
      for (int i = 0; i < 5; i++) s.take(*each[i], blocks, false);
      s.take(layer.down, blocks, true);
      if (!layer.router.weight) continue;
      s.experts = layer.router.out > s.experts ? layer.router.out : s.experts;
      s.top_k = layer.top_k > s.top_k ? layer.top_k : s.top_k;
      int64_t pairs = rows() * layer.top_k, busy = pairs < layer.router.out ? pairs : layer.router.out;
      for (int i = 0; i < 2; i++) s.take(layer.experts[i], pairs / W + busy, i);  // each expert's last block may be partly filled
    }
    return s;
  }

  // Takes all memory; given none, the ends are the needed sizes. Later phases take theirs from `own`, never more than `most`.
  void lay_out(Scratch &shared, Scratch &most) {
    Sizes s = sizes();
    int64_t hidden = stack->hidden, width = stack->head_dim, longest = 1, pairs = rows() * s.top_k;
    x = shared.take<float>(rows() * hidden);
    normed = shared.take<float>(rows() * hidden);
    projected = shared.take<float>(rows() * projected_width());
    mixed = shared.take<float>(rows() * stack->heads * width);
    logits = shared.take<float>(rows() * s.experts);
    gates = shared.take<float>(blocks_of_rows(rows()) * W);
    shares = shared.take<float>(pairs);
    chosen = shared.take<int32_t>(pairs);
    packed = shared.take<uint32_t>(s.pack);
    active = shared.take<uint32_t>(s.active);
    taken = shared.take<int64_t>(DIVIDED * stack->layer_count);
    for (int64_t row = 0; row < rows(); row++) longest = step->lengths[row] > longest ? step->lengths[row] : longest;
    buffer = own.take<uint32_t>(s.panel);
    runs = own.take<PromptRun>(rows());
    Scratch attending = own, feeding = own, rotating = own;
    rotating.take<float>(2 * width + hidden + 64);
    attending.take<float>(stack->heads * longest);
    PromptAttention<T>(width, longest, attending);
    feeding.take<float>(s.experts);
    Groups::make(nullptr, nullptr, rows(), s.top_k, s.experts, feeding);
    feeding.take<int64_t>(s.experts);
    char *last = attending.next > feeding.next ? attending.next : feeding.next;
    most.next = last > rotating.next ? last : rotating.next;
  }

  // Calls each(part) for parts of `size` items, multiples of `step` and of at least `least` or an even share, until the team has computed all:
  // a thread that comes late, or whose processor is slower for a while, takes fewer. A thread alone takes all at once, so that every panel but
  // the first is fetched ahead.
  template <class Each>
  void divide(int64_t size, int64_t step, int64_t least, Each each) {
    int64_t *next = taken + phase++, even = (size + step * team->count - 1) / (step * team->count) * step;
    int64_t part = size / step / (PARTS * team->count) * step;
    part = part < least ? least : part;
    part = part > even || team->count == 1 ? even : part;
    for (int64_t begin; (begin = __atomic_fetch_add(next, part, __ATOMIC_RELAXED)) < size;)
      each(Range{begin, begin + part < size ? begin + part : size});
  }

  // Adjacent rows with the same pages and adjacent positions are of one request.
  void find_runs() {
    run_count = 0;
    for (int64_t row = 0; row < rows(); row++) {
      const int32_t *pages = step->pages + row * step->page_stride;
      bool same = row && step->lengths[row] == step->lengths[row - 1] + 1 &&
                  !memcmp(pages, pages - step->page_stride, step->page_stride * sizeof(int32_t));
      if (same)
        runs[run_count - 1].count++;
      else
        runs[run_count++] = {row, 1};
    }
  }

  // Packs this thread's blocks of `count` rows as inputs of a matrix; from(row) is where a row's floats are.
  template <class From>
  void pack(const omni_matrix &a, int64_t count, uint32_t *to, Range mine, From from) {
    int64_t words = words_of(a.kind, a.in) * W, kind = in_integers(a) ? (int64_t)OMNI_FLOAT32 : a.kind;
    for (int64_t block = mine.begin; block < mine.end; block++) {
      const float *some[W];
      int64_t have = count - block * W < W ? count - block * W : W;
      for (int64_t i = 0; i < have; i++) some[i] = from(block * W + i);
      pack_block(kind, some, have, a.in, to + block * words);
      if (in_integers(a)) round_block(a.kind, a.in, to + block * words);
    }
  }

  // Rounds blocks of gated_product(), once all their units are there.
  void round_units(const omni_matrix &a, int64_t blocks) {
    if (!in_integers(a)) return;
    Range mine = share(blocks, 1, team);
    for (int64_t block = mine.begin; block < mine.end; block++) round_block(a.kind, a.in, active + block * words_of(a.kind, a.in) * W);
    wait(team);
  }

  Lanes pack_all(const omni_matrix &a, const float *from) {
    pack(a, rows(), packed, share(blocks_of_rows(rows()), 1, team), [&](int64_t row) { return from + row * a.in; });
    wait(team);
    return {packed, rows(), words_of(a.kind, a.in)};
  }

  void norm(const float *weight) {
    Range mine = share(blocks_of_rows(rows()), 1, team);
    for (int64_t row = mine.begin * W; row < mine.end * W && row < rows(); row++)
      normalize(x + row * stack->hidden, weight, (float)stack->eps, stack->hidden, normed + row * stack->hidden);
  }

  void project(const omni_matrix &a, const float *from, float *y, bool add) { multiply(a, pack_all(a, from), y, add); }

  void multiply(const omni_matrix &a, const Lanes &lanes, float *y, bool add) {
    divide(a.out, 16, LEAST, [&](Range mine) {
      lane_product(a, lanes, mine.begin, mine.end, buffer, [&](int64_t row, int64_t o, int64_t count, const float *values) {
        (add ? put_sum(y + row * a.out + o, values, count) : put(y + row * a.out + o, values, count));
      });
    });
    wait(team);
  }

  void write_cache(const omni_layer &layer, Scratch scratch) {
    int64_t heads = stack->heads, kv_heads = stack->kv_heads, width = stack->head_dim;
    float *cos = scratch.take<float>(width), *sin = scratch.take<float>(width), scale = 1.0f / __builtin_sqrtf((float)width);
    Range mine = share(rows(), 1, team);
    for (int64_t row = mine.begin; row < mine.end; row++) {
      float *from = projected + row * projected_width();
      to_floats((const T *)step->cos + row * width, width, cos);
      to_floats((const T *)step->sin + row * width, width, sin);
      for (int64_t h = 0; h < heads + kv_heads; h++)
        normalize_rotate(from + h * width, norm_of(layer, h * width), cos, sin, (float)stack->eps, width, stack->pairs, from + h * width);
      for (int64_t i = 0; i < heads * width; i++) from[i] *= scale;
      Pages place{step->pages + row * step->page_stride, step->block_size};
      int64_t slot = place(step->lengths[row] - 1, step->lengths[row]).slot * kv_heads * width;
      from_floats(from + heads * width, kv_heads * width, (T *)layer.keys + slot);
      from_floats(from + (heads + kv_heads) * width, kv_heads * width, (T *)layer.values + slot);
    }
    wait(team);
  }

  void attention_of(const omni_layer &layer, Scratch scratch) {
    int64_t kv_heads = stack->kv_heads;
    divide(run_count * kv_heads, 1, 1, [&](Range mine) {
      in_rows(mine, kv_heads, [&](int64_t which, int64_t head, int64_t some) {
        PromptRun run = runs[which];
        if (run.count == 1) attend_one(layer, run.row, head, some, (float *)scratch.next);
        for (int64_t h = head; h < head + some && run.count > 1; h++) attend_run(layer, run, h, scratch);
      });
    });
    wait(team);
  }

  // Key heads from `head` on of a row that is alone.
  void attend_one(const omni_layer &layer, int64_t row, int64_t head, int64_t some, float *scores) {
    int64_t kv_heads = stack->kv_heads, width = stack->head_dim, group = stack->heads / kv_heads, stride = kv_heads * width;
    Pages place{step->pages + row * step->page_stride, step->block_size};
    const T *keys = (const T *)layer.keys + head * width, *values = (const T *)layer.values + head * width;
    const float *query = projected + row * projected_width() + head * group * width;
    const T *after = row + 1 < rows() ? keys + step->pages[(row + 1) * step->page_stride] * step->block_size * stride : keys;
    attend(query, some, group, width, keys, values, stride, place, step->lengths[row], after, scores, mixed + (row * stack->heads + head * group) * width);
  }

  // A key head of a run of positions.
  void attend_run(const omni_layer &layer, PromptRun run, int64_t head, Scratch scratch) {
    int64_t heads = stack->heads, kv_heads = stack->kv_heads, width = stack->head_dim, group = heads / kv_heads, stride = kv_heads * width;
    int64_t total = step->lengths[run.row + run.count - 1];
    Pages place{step->pages + run.row * step->page_stride, step->block_size};
    const T *keys = (const T *)layer.keys + head * width, *values = (const T *)layer.values + head * width;
    const float *first = projected + run.row * projected_width() + head * group * width;
    float *output = mixed + (run.row * heads + head * group) * width;
    PromptAttention<T> attention(width, total, scratch);
    attention.read_cache(keys, values, stride, place);
    for (int64_t lane = 0; lane < run.count * group; lane += 2 * W) {
      int64_t count = run.count * group - lane < 2 * W ? run.count * group - lane : 2 * W, limits[2 * W];
      const float *some[2 * W];
      for (int64_t i = 0; i < count; i++) {
        int64_t row = (lane + i) / group;
        some[i] = first + row * projected_width() + (lane + i) % group * width;
        limits[i] = step->lengths[run.row + row];
      }
      attention.attend(some, limits, count, [&](int64_t i, int64_t d, int64_t size, const float *v) {
        put(output + ((lane + i) / group * heads + (lane + i) % group) * width + d, v, size);
      });
    }
  }

  void dense(const omni_layer &layer, bool shared) {
    int64_t units = layer.gate_up.out / 2;
    Lanes lanes = pack_all(layer.gate_up, normed);
    // The gate of a shared expert scales its output, which is linear in its units.
    divide(units, UNITS, LEAST / 2, [&](Range part) {
      gated_product(layer.gate_up, lanes, part, layer.down, active, shared ? gates : nullptr, buffer);
    });
    wait(team);
    round_units(layer.down, blocks_of_rows(rows()));
    multiply(layer.down, {active, rows(), words_of(layer.down.kind, units)}, x, true);
  }

  void experts(const omni_layer &layer, Scratch scratch) {
    int64_t count = layer.router.out, top_k = layer.top_k;
    project(layer.router, normed, logits, false);
    float *wide = scratch.take<float>(count);
    Range mine = share(rows(), 1, team);
    for (int64_t row = mine.begin; row < mine.end; row++)
      choose(logits + row * count, count, top_k, layer.normalize, wide, chosen + row * top_k, shares + row * top_k);
    wait(team);
    Groups groups = Groups::make(chosen, shares, rows(), top_k, count, scratch);
    int64_t *first = scratch.take<int64_t>(count), blocks = 0, busy = 0, units = layer.experts[0].out / 2;
    for (int64_t e = 0; e < count; e++) {
      first[e] = blocks;
      blocks += blocks_of_rows(groups.begins[e + 1] - groups.begins[e]);
      busy += groups.begins[e + 1] > groups.begins[e];
    }
    const omni_matrix &entry = layer.experts[0], &exit = layer.experts[1];
    auto lanes_of = [&](const omni_matrix &a, uint32_t *words, int64_t e) {
      int64_t steps = words_of(a.kind, a.in);
      return Lanes{words + first[e] * W * steps, groups.begins[e + 1] - groups.begins[e], steps};
    };
    Range all = share(blocks, 1, team);
    for (int64_t e = 0; e < count; e++) {
      int64_t have = groups.begins[e + 1] - groups.begins[e], last = blocks_of_rows(have);
      const int32_t *pairs = groups.order + groups.begins[e];
      Range part = {all.begin > first[e] ? all.begin - first[e] : 0, all.end - first[e] < last ? all.end - first[e] : last};
      pack(entry, have, packed + first[e] * W * words_of(entry.kind, entry.in), part,
           [&](int64_t i) { return normed + pairs[i] / top_k * stack->hidden; });
    }
    wait(team);
    int64_t panels = (units + UNITS - 1) / UNITS;
    divide(busy * panels, 1, LEAST / PANEL, [&](Range some) {
      int64_t at = 0;
      for (int64_t e = 0; e < count; e++) {
        if (groups.begins[e + 1] == groups.begins[e]) continue;
        Range part = {some.begin > at ? some.begin - at : 0, some.end - at < panels ? some.end - at : panels};
        at += panels;
        if (part.begin >= part.end) continue;
        part = {part.begin * UNITS, part.end * UNITS < units ? part.end * UNITS : units};
        uint32_t *to = active + first[e] * W * words_of(exit.kind, units);
        gated_product(layer.experts[2 * e], lanes_of(entry, packed, e), part, exit, to, nullptr, buffer);
      }
    });
    wait(team);
    round_units(exit, blocks);
    divide(stack->hidden, 16, LEAST, [&](Range outs) {
      for (int64_t e = 0; e < count; e++) {
        if (groups.begins[e + 1] == groups.begins[e]) continue;
        const int32_t *pairs = groups.order + groups.begins[e];
        lane_product(layer.experts[2 * e + 1], lanes_of(exit, active, e), outs.begin, outs.end, buffer,
                     [&](int64_t row, int64_t o, int64_t size, const float *values) {
                       put_sum(x + pairs[row] / top_k * stack->hidden + o, values, size, groups.weights[pairs[row]]);
                     });
      }
    });
    wait(team);
  }

  void shared_gates(const omni_matrix &a) {
    Lanes lanes = pack_all(a, normed);
    Range mine = share(1, 1, team);
    lane_product(a, lanes, mine.begin, mine.end, buffer, [&](int64_t row, int64_t, int64_t, const float *values) {
      gates[row] = 1.0f / (1.0f + exponential(broadcast(-values[0]))[0]);
    });
    wait(team);
  }

  void run() {
    Scratch shared{team->shared}, most{nullptr};
    own = Scratch{team->own};
    lay_out(shared, most);
    find_runs();
    Tiles tiles;
    (void)tiles;
    int64_t hidden = stack->hidden;
    phase = 0;
    if (!team->index) memset(taken, 0, DIVIDED * stack->layer_count * sizeof(int64_t));
    Range mine = share(rows() * hidden, 8, team);
    to_floats((const T *)step->x + mine.begin, mine.end - mine.begin, x + mine.begin);
    wait(team);
    for (int64_t l = 0; l < stack->layer_count; l++) {
      const omni_layer &layer = stack->layers[l];
      if (step->captured && step->capture == l) from_floats(x + mine.begin, mine.end - mine.begin, (T *)step->captured + mine.begin);
      norm(layer.input_norm);
      project(layer.qkv, normed, projected, false);
      write_cache(layer, own);
      attention_of(layer, own);
      project(layer.output, mixed, x, true);
      norm(layer.post_norm);
      if (layer.router.weight) experts(layer, own);
      if (layer.shared_gate.weight) shared_gates(layer.shared_gate);
      if (layer.gate_up.weight) dense(layer, layer.shared_gate.weight);
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
void prefill(const omni_stack *stack, const omni_step *step, const omni_team *team) {
  Prefill<T> prompts{};
  prompts.stack = stack;
  prompts.step = step;
  prompts.team = team;
  prompts.run();
}

// Bytes of memory that a team of prefill() shares, and that each thread needs.
template <class T>
void prefill_memory(const omni_stack *stack, const omni_step *step, int64_t *shared, int64_t *own) {
  Prefill<T> prompts{};
  prompts.stack = stack;
  prompts.step = step;
  Scratch all{nullptr}, most{nullptr};
  prompts.lay_out(all, most);
  *shared = (int64_t)all.next + 64;
  *own = (int64_t)most.next + 64;
}

}  // namespace
