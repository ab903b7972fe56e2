// What Python calls, with ctypes. `glmforge.kernels.native` says what each needs to be given.

#include "layers.h"

using namespace glmforge;

namespace {

// Calls f with a number of the type that stands for a dtype: 0 float32, 1 bfloat16.
template <class F>
void with_type(int64_t dtype, F f) {
    dtype ? f(bfloat16()) : f(float());
}

// y [N, O]: each row of x [N, J], sorted by expert, times its expert's matrix of weight [E, O, J].
struct ExpertLinear {
    const void *x, *weight;
    void* y;
    const int64_t* counts;
    int64_t num_experts, num_in, num_out, num_threads;
};

template <class X, class W>
void run_expert_linear(const ExpertLinear& a) {
    std::vector<int64_t> active, starts{0};
    for (int64_t expert = 0; expert < a.num_experts; expert++) {
        if (a.counts[expert]) active.push_back(expert);
        starts.push_back(starts.back() + a.counts[expert]);
    }
    int64_t num_blocks = (a.num_out + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS, num_items = active.size() * num_blocks;
#pragma omp parallel for schedule(dynamic) num_threads(int(a.num_threads))
    for (int64_t item = 0; item < num_items; item++) {
        int64_t expert = active[item / num_blocks], first = starts[expert];
        int64_t begin = item % num_blocks * BLOCK_OUTPUTS, end = std::min(a.num_out, begin + BLOCK_OUTPUTS);
        const W* weight = (const W*)a.weight + expert * a.num_out * a.num_in;
        multiply(
            Matrix<X>{(const X*)a.x + first * a.num_in, a.num_in}, a.counts[expert], Matrix<W>{weight, a.num_in}, begin,
            end, a.num_in, [&](int64_t row, int64_t output, const float* found, int64_t count) {
                write((X*)a.y + (first + row) * a.num_out + output, load(found, count), count);
            });
    }
}

struct AttentionCall {
    int64_t num_heads, num_kv_heads, head_dim;
    const void *q, *keys, *values;
    void* o;
    Tokens tokens;
    int64_t num_threads;
};

}  // namespace

extern "C" {

void glmforge_expert_linear(const ExpertLinear* call, int64_t x_type, int64_t w_type) {
    with_type(x_type, [&](auto x) {
        with_type(w_type, [&](auto w) { run_expert_linear<decltype(x), decltype(w)>(*call); });
    });
}

void glmforge_attention(const AttentionCall* call, int64_t x_type) {
    with_type(x_type, [&](auto x) {
        using X = decltype(x);
        Attention<X> a{call->num_heads, call->num_kv_heads, call->head_dim, (const X*)call->q, (const X*)call->keys,
                       (const X*)call->values, (X*)call->o, call->tokens};
        AttentionPlan plan(a, int(call->num_threads));
#pragma omp parallel num_threads(int(call->num_threads))
        attend(a, plan);
    });
}

void glmforge_write_pages(
    const void* k, const void* v, void* keys, void* values, const Tokens* tokens, int64_t num_kv_heads,
    int64_t head_dim, int64_t x_type) {
    with_type(x_type, [&](auto x) {
        using X = decltype(x);
        for (int64_t t = 0; t < tokens->num_tokens; t++) {
            write_page((const X*)k, (X*)keys, t, *tokens, num_kv_heads, head_dim);
            write_page((const X*)v, (X*)values, t, *tokens, num_kv_heads, head_dim);
        }
    });
}

void glmforge_layers(const Layer* layers, int64_t num_layers, const Step* step, int64_t x_type, int64_t w_type) {
    with_type(x_type, [&](auto x) {
        with_type(w_type, [&](auto w) { run_layers<decltype(x), decltype(w)>(layers, num_layers, *step); });
    });
}

void glmforge_head(const Head* head, int64_t x_type, int64_t w_type) {
    with_type(x_type, [&](auto x) {
        with_type(w_type, [&](auto w) { run_head<decltype(x), decltype(w)>(*head); });
    });
}

}  // extern "C"
