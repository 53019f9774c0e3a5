// All kernels for the instruction set that this file is compiled for. The build compiles it once for each, with its NAME.
#include "frames.h"
#include "sound.h"

namespace {

template <class T>
void product_of_tensor(const omni_matrix *a, const void *x, int64_t rows, void *y, const omni_team *team) {
  Scratch own{team->own};
  float *wide = own.take<float>(rows * a->in);
  to_floats((const T *)x, rows * a->in, wide);
  multiply_rows(*a, wide, rows, own, team, [&](int64_t row, int64_t o, float value) { ((T *)y)[row * a->out + o] = Element<T>::round(value); });
}

void any_product(const omni_matrix *a, const void *x, int64_t dtype, int64_t rows, void *y, const omni_team *team) {
  (dtype == OMNI_BFLOAT16 ? product_of_tensor<bf16> : product_of_tensor<float>)(a, x, rows, y, team);
}

void any_norm(const void *x, const void *add, const void *weight, double eps, int64_t rows, int64_t size, int64_t dtype, void *total,
              void *y, const omni_team *team) {
  if (dtype == OMNI_BFLOAT16)
    rms_norm((const bf16 *)x, (const bf16 *)add, (const bf16 *)weight, (float)eps, rows, size, (bf16 *)total, (bf16 *)y, team);
  else
    rms_norm((const float *)x, (const float *)add, (const float *)weight, (float)eps, rows, size, (float *)total, (float *)y, team);
}

void any_attention(const omni_attention *a, const omni_team *team) {
  (a->dtype == OMNI_BFLOAT16 ? attention<bf16> : attention<float>)(a, team);
}

void any_experts(const omni_experts *a, const omni_team *team) { (a->dtype == OMNI_BFLOAT16 ? experts<bf16> : experts<float>)(a, team); }

void any_decode(const omni_stack *stack, const omni_step *step, const omni_team *team) {
  (step->dtype == OMNI_BFLOAT16 ? decode<bf16> : decode<float>)(stack, step, team);
}

void any_prefill(const omni_stack *stack, const omni_step *step, const omni_team *team) {
  (step->dtype == OMNI_BFLOAT16 ? prefill<bf16> : prefill<float>)(stack, step, team);
}

void any_prefill_memory(const omni_stack *stack, const omni_step *step, int64_t *shared, int64_t *own) {
  (step->dtype == OMNI_BFLOAT16 ? prefill_memory<bf16> : prefill_memory<float>)(stack, step, shared, own);
}

void any_frames(const omni_stack *stack, const omni_frames *call, const omni_team *team) {
  (call->dtype == OMNI_BFLOAT16 ? frames<bf16> : frames<float>)(stack, call, team);
}

void any_sound(const omni_sound_stack *stack, const omni_sound *call, const omni_team *team) {
  (call->dtype == OMNI_BFLOAT16 ? sound<bf16> : sound<float>)(stack, call, team);
}

constexpr int64_t SOUND_FORM = TILES ? OMNI_TILES : PAIRS ? OMNI_PAIRS : OMNI_WORDS;

}  // namespace

#define JOIN(a, b) a##b
#define EXPORT(name) JOIN(omni_kernels_, name)
#define QUOTE(name) #name
#define TEXT(name) QUOTE(name)

extern "C" const omni_functions EXPORT(NAME);
extern "C" const omni_functions EXPORT(NAME) = {TEXT(NAME), any_product, any_norm, any_attention, any_experts, any_decode,
                                                   any_prefill, any_prefill_memory, any_frames, any_sound, sound_memory, SOUND_FORM};
