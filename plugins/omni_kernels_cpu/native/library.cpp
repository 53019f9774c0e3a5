// The library's functions: the choice of an instruction set, and calls on a team of threads.
#include <stdlib.h>
#include <string.h>

#include "choice.h"
#include "pool.h"

#define EXPORTED __attribute__((visibility("default")))
#define EVERY(X) X(portable)
#if defined(__x86_64__)
#undef EVERY
#define EVERY(X) X(amx) X(avx512_bf16) X(avx512) X(avx2) X(portable)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(EMULATED)  // for tests: see emulation.h
#undef EVERY
#define EVERY(X) X(avx2) X(amx) X(avx512_bf16) X(avx512) X(portable)
#endif

// Weak: a compiler that is too old for an instruction set leaves it out.
#define DECLARE(name) extern "C" __attribute__((weak)) const omni_functions omni_kernels_##name;
EVERY(DECLARE)

namespace {

#if defined(__x86_64__)
// Linux keeps the state of tiles for processes that have asked for it, which is their threads' and their children's permission too.
bool tiles_work() {
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return false;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3) != 3) return false;
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#endif

bool works_here(const char *name) {
#if defined(EMULATED)
  if (name) return true;
#elif defined(__x86_64__)
  __builtin_cpu_init();
  bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512dq");
  bool pairs = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  if (!strcmp(name, "amx")) return wide && pairs && tiles_work();
  if (!strcmp(name, "avx512_bf16")) return wide && pairs;
  if (!strcmp(name, "avx512")) return wide;
  if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return !strcmp(name, "portable");
}

const omni_functions *find(const char *wanted) {
#define TRY(name) \
  if ((!wanted || !strcmp(wanted, #name)) && &omni_kernels_##name && works_here(#name)) return &omni_kernels_##name;
  EVERY(TRY)
  return nullptr;
}

const omni_functions *chosen = find(nullptr);

size_t floats(int64_t count) { return (count * sizeof(float) + 63) / 64 * 64; }

constexpr int64_t END = 128;  // floats by which a row of integers may be longer than one of floats

constexpr size_t SMALL = 64 * 64;  // what rounding up to cache lines adds to a few dozen pieces

// What product() takes: of inputs in 8 bits rows as vectors, and a panel; of other weights in groups sums of 16 lanes of 4 outputs, of
// codes 4 outputs.
size_t scratch_memory(const omni_matrix &a, int64_t rows) {
  return a.int8_inputs ? floats((rows + 16 + 48) * (a.in + 32)) + floats(4096) : a.kind == OMNI_CODES ? floats(4 * a.in) : a.group_scales ? floats(64 * rows) : 0;
}

// Of this thread, for a product of rows of floats.
size_t product_memory(const omni_matrix &a, int64_t rows) {
  size_t scratch = scratch_memory(a, rows), panel = a.group_scales ? floats(48 * a.in > 4096 ? 48 * a.in : 4096) : 0;
  return floats((rows + 16) * a.in + END * rows) + floats(2 * rows) + (scratch > panel ? scratch : panel) + SMALL;
}

void decode_memory(const omni_stack *stack, const omni_step *step, size_t *shared, size_t *own) {
  int64_t rows = step->rows, pairs = 0, units = 0, dense = 0, experts = 0, longest = 0;
  size_t scratch = 0;
  auto widest = [&](const omni_matrix &a) {
    if (a.weight && scratch_memory(a, rows) > scratch) scratch = scratch_memory(a, rows);
  };
  for (int64_t l = 0; l < stack->layer_count; l++) {
    const omni_layer &layer = stack->layers[l];
    if (layer.gate_up.weight && layer.gate_up.out / 2 > dense) dense = layer.gate_up.out / 2;
    widest(layer.qkv);
    widest(layer.output);
    widest(layer.gate_up);
    widest(layer.down);
    if (!layer.router.weight) continue;
    widest(layer.router);
    widest(layer.shared_gate);
    widest(layer.experts[0]);
    widest(layer.experts[1]);
    if (layer.router.out > experts) experts = layer.router.out;
    if (rows * layer.top_k > pairs) pairs = rows * layer.top_k;
    if (layer.experts[0].out / 2 > units) units = layer.experts[0].out / 2;
  }
  for (int64_t row = 0; row < rows; row++) longest = step->lengths[row] > longest ? step->lengths[row] : longest;
  int64_t heads = stack->heads * stack->head_dim, all = heads + 2 * stack->kv_heads * stack->head_dim;
  *shared = floats(rows * (stack->hidden + all + heads + experts + 2 * dense)) + 2 * floats(pairs * units) + SMALL;
  *own = floats(rows * (4 * stack->hidden + 2 * heads + all + 2 * dense + 2 * stack->head_dim + 8 * END)) + floats(pairs * (units + END)) +
         floats(stack->heads * longest) + floats(20 * pairs + 20 * rows + 4 * experts) + scratch + SMALL;
}

}  // namespace

extern "C" {

EXPORTED int omni_cpu_abi() { return OMNI_CPU_ABI; }

EXPORTED const char *omni_cpu_instruction_set() { return chosen->name; }

// Uses an instruction set from now on, or the best (null); returns 0 if this processor lacks it.
EXPORTED int omni_cpu_use(const char *name) {
  const omni_functions *found = find(name);
  if (found) chosen = found;
  return found != nullptr;
}

EXPORTED void omni_cpu_product(const omni_matrix *a, const void *x, int64_t dtype, int64_t rows, void *y, int threads) {
  struct Call {
    const omni_matrix *a;
    const void *x;
    int64_t dtype, rows;
    void *y;
  } call{a, x, dtype, rows, y};
  run(threads, 64, product_memory(*a, rows) + floats(rows * a->in), [](void *c, const omni_team *team) {
    Call *call = static_cast<Call *>(c);
    chosen->product(call->a, call->x, call->dtype, call->rows, call->y, team);
  }, &call, {nullptr, rows * a->in * a->out});
}

EXPORTED void omni_cpu_rms_norm(const void *x, const void *add, const void *weight, double eps, int64_t rows, int64_t size, int64_t dtype, void *total,
                       void *y, int threads) {
  struct Call {
    const void *x, *add, *weight;
    double eps;
    int64_t rows, size, dtype;
    void *total, *y;
  } call{x, add, weight, eps, rows, size, dtype, total, y};
  run(threads, 64, 2 * floats(size) + SMALL, [](void *c, const omni_team *team) {
    Call *call = static_cast<Call *>(c);
    chosen->rms_norm(call->x, call->add, call->weight, call->eps, call->rows, call->size, call->dtype, call->total, call->y, team);
  }, &call, {nullptr, rows * size});
}

EXPORTED void omni_cpu_attention(const omni_attention *a, int threads) {
  int64_t longest = 0;
  for (int64_t row = 0; row < a->rows; row++) longest = a->lengths[row] > longest ? a->lengths[row] : longest;
  size_t own = 2 * floats(a->heads * a->head_dim) + floats(a->heads * longest) + SMALL;
  run(threads, 64, own, [](void *c, const omni_team *team) { chosen->attention(static_cast<const omni_attention *>(c), team); },
      const_cast<omni_attention *>(a), {nullptr, a->rows * a->heads * a->head_dim * longest});
}

EXPORTED void omni_cpu_experts(const omni_experts *a, int threads) {
  int64_t pairs = a->rows * a->top_k;
  size_t shared = 2 * floats(pairs * a->inner) + floats(a->rows * a->hidden) + SMALL;
  size_t own = 2 * floats(a->rows * a->hidden) + floats(pairs * a->inner) + floats(20 * pairs + 4 * a->rows + 3 * a->experts) +
               2 * a->experts * sizeof(omni_matrix) + SMALL;
  run(threads, shared, own, [](void *c, const omni_team *team) { chosen->experts(static_cast<const omni_experts *>(c), team); },
      const_cast<omni_experts *>(a), {a->gate_up, a->rows});
}

EXPORTED void omni_cpu_decode(const omni_stack *stack, const omni_step *step, int threads) {
  size_t shared, own;
  decode_memory(stack, step, &shared, &own);
  struct Call {
    const omni_stack *stack;
    const omni_step *step;
  } call{stack, step};
  run(threads, shared, own, [](void *c, const omni_team *team) {
    Call *call = static_cast<Call *>(c);
    chosen->decode(call->stack, call->step, team);
  }, &call, {stack->layers, step->rows});
}

EXPORTED void omni_cpu_frames(const omni_stack *stack, const omni_frames *frames, int threads) {
  int64_t rows = 2 * frames->rows, most = 0, vocab = 0;
  size_t shared, own, head = 0;
  int32_t *lengths = static_cast<int32_t *>(malloc(rows * sizeof(int32_t)));
  if (!lengths) abort();
  for (int64_t row = 0; row < rows; row++) lengths[row] = (int32_t)frames->groups;
  omni_step step{};
  step.lengths = lengths;
  step.rows = rows;
  step.dtype = frames->dtype;
  if (frames->prompts) {
    int64_t all, each;
    chosen->prefill_memory(stack, &step, &all, &each);
    shared = all;
    own = each;
  } else {
    decode_memory(stack, &step, &shared, &own);
  }
  free(lengths);
  for (int64_t group = 0; group + 1 < frames->groups; group++) {
    size_t some = product_memory(frames->heads[group], frames->rows);
    head = some > head ? some : head;
    vocab = frames->heads[group].out > vocab ? frames->heads[group].out : vocab;
  }
  most = floats(2 * vocab) + 2 * SMALL;
  head += floats(frames->rows * stack->hidden);
  own = own > head ? own : head;
  own = own > (size_t)most ? own : most;
  shared += floats(2 * rows * (stack->hidden + stack->head_dim) + 2 * rows + frames->rows * vocab) + SMALL;
  struct Call {
    const omni_stack *stack;
    const omni_frames *frames;
  } call{stack, frames};
  run(threads, shared, own, [](void *c, const omni_team *team) {
    Call *call = static_cast<Call *>(c);
    chosen->frames(call->stack, call->frames, team);
  }, &call, {frames->heads, frames->rows});
}

// Runs of adjacent positions of requests, or any number of single rows.
EXPORTED void omni_cpu_prefill(const omni_stack *stack, const omni_step *step, int threads) {
  int64_t shared, own;
  chosen->prefill_memory(stack, step, &shared, &own);
  struct Call {
    const omni_stack *stack;
    const omni_step *step;
  } call{stack, step};
  run(threads, shared, own, [](void *c, const omni_team *team) {
    Call *call = static_cast<Call *>(c);
    chosen->prefill(call->stack, call->step, team);
  }, &call, {stack->layers, step->rows});
}

// The form in which the weights of a stack of convolutions are packed: for the instruction set in use.
EXPORTED int omni_cpu_sound_form(int64_t dtype) { return dtype == OMNI_BFLOAT16 ? (int)chosen->sound_form : OMNI_WORDS; }

EXPORTED void omni_cpu_sound(const omni_sound_stack *stack, const omni_sound *sound, int threads) {
  int64_t shared, own;
  chosen->sound_memory(stack, sound, &shared, &own);
  struct Call {
    const omni_sound_stack *stack;
    const omni_sound *sound;
  } call{stack, sound};
  run(threads, shared, own, [](void *c, const omni_team *team) {
    Call *call = static_cast<Call *>(c);
    chosen->sound(call->stack, call->sound, team);
  }, &call, {stack->layers, sound->batch * sound->columns});
}

// Chooses threads by measurement (as at first), or takes as many as calls ask for.
EXPORTED void omni_cpu_measure_threads(int on) { measure_threads(on != 0); }

// Writes 1 for each of `calls` calls of one load that a team would compute, given their seconds alone and together, and which teams' calls paid
// by what their threads did; for tests.
EXPORTED void omni_cpu_choices(const double *alone, const double *together, const int8_t *paid, int64_t calls, int8_t *teams) {
  Choice choice;
  for (int64_t i = 0; i < calls; i++) {
    teams[i] = choice.next();
    choice.took(teams[i], teams[i] ? together[i] : alone[i], paid[i]);
  }
}

}  // extern "C"
