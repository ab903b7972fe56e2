// The decoder layers of a GLM MoE on the tokens of a step: what `glmforge.model.block` computes, for few tokens.
//
// All layers run in one parallel region, so that threads wait for each other nine times in a layer and nobody waits for
// an interpreter. Weights are float32 or bfloat16; they and what they are multiplied by are rounded to X (the compute
// dtype), but for the router's, which is computed in float32 and may be float32 beside others in bfloat16. Sums and the residual stream are float32.
//
// Shapes: T tokens, D hidden, H query heads, G key/value heads, P head_dim, R rotary dims, E experts, K experts of a
// token, I width of an expert, F width of a dense layer or of the shared experts.

#pragma once

#include "attention.h"

namespace glmforge {

// Weights as `glmforge.kernels.native.layers.Layer` gives them; a null pointer where the model has none.
struct Layer {
    int64_t hidden, num_heads, num_kv_heads, head_dim, rotary_dim;
    int64_t width, num_experts, num_choices, expert_width;  // num_experts: 0 in a dense layer
    float eps, routed_scale;
    int64_t normalise, router_in_float;  // whether the router's weight is float32 whatever the others are
    const void *input_norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm, *o, *post_norm;
    const void *gate, *up, *down;                        // [F, D], [F, D], [D, F]
    const void *router, *expert_gate_up, *expert_down;  // [E, D], [E, 2I, D], [E, D, I]
    const float* router_bias;                            // [E]
    void *keys, *values;                                 // [N, G, C, P] in X
};

struct Step {
    Tokens tokens;
    const float *cos, *sin;  // [T, R], of which the first half is read
    float* h;                // [T, D], the residual stream, changed in place
    int64_t* experts;        // [layers, T, K], each token's experts, or null
    int64_t num_threads;
};

// What the layers of a step keep between their parts.
template <class X>
struct Scratch {
    Buffer<X> normed, q, k, v, o, product, expert_product;
    Buffer<float> projected, weights;
    Buffer<int64_t> chosen, starts, order, active;
    int64_t num_active = 0;  // experts with rows
};

// RMSNorm, rounded to X before the weight is applied, as published.
template <class X, class W, class To>
void norm_row(const float* x, const W* weight, int64_t size, float eps, To* to) {
    Floats squares = {};
    by_lanes(size, [&](int64_t at, int64_t count) {
        Floats value = read(x + at, count);
        squares += value * value;
    });
    float scale = 1 / std::sqrt(sum(squares) / size + eps);
    by_lanes(size, [&](int64_t at, int64_t count) {
        X normed[LANES];
        store(normed, read(x + at, count) * scale);
        write(to + at, load(normed) * rounded<X>(read(weight + at, count)), count);
    });
}

template <class X, class W>
class LayerOnTokens {
  public:
    LayerOnTokens(const Layer& layer, const Step& step, Scratch<X>& scratch, int64_t number)
        : l(layer), step(step), s(scratch), T(step.tokens.num_tokens), number(number) {}

    // Called by all threads of a region.
    void run(AttentionPlan& plan) {
        norm(l.input_norm);
        project();
        turn_heads();
        attend(attention(), plan);
        add_linear(s.o, l.o, l.num_heads * l.head_dim);
        norm(l.post_norm);
        if (l.num_experts) {
            route();
            expert_products();
        }
        products_of_all();
        add_mlp();
    }

    // Makes room for what follows; called before it, by one thread.
    void prepare() {
        int64_t q_width = l.num_heads * l.head_dim, kv_width = l.num_kv_heads * l.head_dim, N = T * l.num_choices;
        room(s.normed, T * l.hidden), room(s.projected, T * (q_width + 2 * kv_width)), room(s.product, T * l.width);
        room(s.q, T * q_width), room(s.k, T * kv_width), room(s.v, T * kv_width), room(s.o, T * q_width);
        if (!l.num_experts) return;
        room(s.weights, N), room(s.chosen, N), room(s.order, N), room(s.expert_product, N * l.expert_width);
        room(s.starts, l.num_experts + 1), room(s.active, l.num_experts);
    }

    Attention<X> attention() {
        return {l.num_heads, l.num_kv_heads, l.head_dim, s.q.data(), (const X*)l.keys, (const X*)l.values, s.o.data(),
                step.tokens};
    }

  private:
    Matrix<X> normed() const { return {s.normed.data(), l.hidden}; }

    void norm(const void* weight) {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++)
            norm_row<X>(step.h + t * l.hidden, (const W*)weight, l.hidden, l.eps, s.normed.data() + t * l.hidden);
    }

    // Queries, keys and values before norm and rotation, [T, (H + 2G) P] in float32.
    void project() {
        int64_t q_width = l.num_heads * l.head_dim, kv_width = l.num_kv_heads * l.head_dim;
        int64_t width = q_width + 2 * kv_width;
        auto part = [&](const void* weight, const void* bias, int64_t outputs, int64_t offset) {
            by_blocks(outputs, [&](int64_t begin, int64_t end) {
                multiply(
                    normed(), T, Matrix<W>{(const W*)weight, l.hidden}, begin, end, l.hidden,
                    [&](int64_t t, int64_t output, const float* found, int64_t count) {
                        float* to = s.projected.data() + t * width + offset + output;
                        Floats added = bias ? rounded<X>(load((const W*)bias + output, count)) : Floats{};
                        store(to, load(found, count) + added, count);
                    });
            });
        };
        part(l.q, l.q_bias, q_width, 0);
        part(l.k, l.k_bias, kv_width, q_width);
        part(l.v, l.v_bias, kv_width, q_width + kv_width);
    }

    // Norms and turns queries and keys, rounds all three, and puts keys and values into their pages.
    void turn_heads() {
        int64_t H = l.num_heads, G = l.num_kv_heads, P = l.head_dim;
#pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) {
            float* from = s.projected.data() + t * (H + 2 * G) * P;
            for (int64_t head = 0; head < H; head++) turn(from + head * P, l.q_norm, t, s.q.data() + (t * H + head) * P);
            for (int64_t g = 0; g < G; g++) turn(from + (H + g) * P, l.k_norm, t, s.k.data() + (t * G + g) * P);
            by_lanes(G * P, [&](int64_t at, int64_t count) {
                write(s.v.data() + t * G * P + at, read(from + (H + G) * P + at, count), count);
            });
            write_page(s.k.data(), (X*)l.keys, t, step.tokens, G, P);
            write_page(s.v.data(), (X*)l.values, t, step.tokens, G, P);
        }
    }

    void turn(float* head, const void* norm_weight, int64_t t, X* to) {
        if (norm_weight) norm_row<X>(head, (const W*)norm_weight, l.head_dim, l.eps, head);
        int64_t half = l.rotary_dim / 2;
        const float *cos = step.cos + t * l.rotary_dim, *sin = step.sin + t * l.rotary_dim;
        for (int64_t i = 0; i < half; i++) {
            float first = head[i], second = head[i + half];
            head[i] = first * cos[i] - second * sin[i];
            head[i + half] = second * cos[i] + first * sin[i];
        }
        by_lanes(l.head_dim, [&](int64_t at, int64_t count) { write(to + at, read(head + at, count), count); });
    }

    // h += x @ weight.T
    void add_linear(const Buffer<X>& x, const void* weight, int64_t length) {
        by_blocks(l.hidden, [&](int64_t begin, int64_t end) { add_product(x, weight, length, begin, end); });
    }

    void add_product(const Buffer<X>& x, const void* weight, int64_t length, int64_t begin, int64_t end) {
        multiply(
            Matrix<X>{x.data(), length}, T, Matrix<W>{(const W*)weight, length}, begin, end, length,
            [&](int64_t t, int64_t output, const float* found, int64_t count) {
                float* to = step.h + t * l.hidden + output;
                for (int64_t i = 0; i < count; i++) to[i] += found[i];
            });
    }

    // The experts of each token, and their rows in the order of the experts.
    void route() {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) choose_experts(t);
#pragma omp single
        sort_by_expert();
    }

    void choose_experts(int64_t t) {
        thread_local Buffer<float> memory;
        int64_t E = l.num_experts, K = l.num_choices;
        float *x = room(memory, l.hidden + 2 * E), *scores = x + l.hidden, *choice = scores + E;
        by_lanes(l.hidden, [&](int64_t at, int64_t count) { write(x + at, read(normed()(t) + at, count), count); });
        auto multiply_by = [&](auto router) {
            multiply(
                Matrix<float>{x, l.hidden}, 1, router, 0, E, l.hidden,
                [&](int64_t, int64_t expert, const float* found, int64_t count) {
                    write(scores + expert, sigmoid(load(found, count)), count);
                });
        };
        if (l.router_in_float)
            multiply_by(Matrix<float>{(const float*)l.router, l.hidden});
        else
            multiply_by(Matrix<W>{(const W*)l.router, l.hidden});
        for (int64_t expert = 0; expert < E; expert++) choice[expert] = scores[expert] + l.router_bias[expert];
        float total = 1e-20f;
        for (int64_t k = 0; k < K; k++) {
            int64_t best = std::max_element(choice, choice + E) - choice;
            choice[best] = -std::numeric_limits<float>::infinity();
            s.chosen[t * K + k] = best;
            total += s.weights[t * K + k] = scores[best];
        }
        for (int64_t k = 0; k < K; k++) s.weights[t * K + k] *= l.routed_scale / (l.normalise ? total : 1);
        if (step.experts) std::copy_n(s.chosen.data() + t * K, K, step.experts + (number * T + t) * K);
    }

    void sort_by_expert() {
        int64_t N = T * l.num_choices;
        std::fill_n(s.starts.begin(), l.num_experts + 1, 0);
        for (int64_t n = 0; n < N; n++) s.starts[s.chosen[n] + 1]++;
        for (int64_t expert = 0; expert < l.num_experts; expert++) s.starts[expert + 1] += s.starts[expert];
        std::vector<int64_t> next(s.starts.begin(), s.starts.begin() + l.num_experts);
        for (int64_t n = 0; n < N; n++) s.order[next[s.chosen[n]]++] = n;
        s.num_active = 0;
        for (int64_t expert = 0; expert < l.num_experts; expert++)
            if (s.starts[expert] < s.starts[expert + 1]) s.active[s.num_active++] = expert;
    }

    // silu(gate) * up of each routed row, [N, I].
    void expert_products() {
        int64_t I = l.expert_width, num_blocks = (I + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS;
#pragma omp for schedule(dynamic) nowait
        for (int64_t item = 0; item < s.num_active * num_blocks; item++) {
            int64_t expert = s.active[item / num_blocks], first = s.starts[expert];
            int64_t begin = item % num_blocks * BLOCK_OUTPUTS, end = std::min(I, begin + BLOCK_OUTPUTS);
            const W* gate = (const W*)l.expert_gate_up + expert * 2 * I * l.hidden;
            swiglu(
                gate, gate + I * l.hidden, I, begin, end,
                [&](int64_t row) { return normed()(s.order[first + row] / l.num_choices); },
                s.starts[expert + 1] - first, s.expert_product.data() + first * I);
        }
    }

    // The same of the dense layer or of the shared experts, [T, F].
    void products_of_all() {
        by_blocks(l.width, [&](int64_t begin, int64_t end) {
            swiglu((const W*)l.gate, (const W*)l.up, l.width, begin, end, normed(), T, s.product.data());
        });
    }

    template <class Rows>
    void swiglu(const W* gate, const W* up, int64_t width, int64_t begin, int64_t end, const Rows& rows,
                int64_t num_rows, X* to) {
        constexpr int64_t MOST = 32;
        float gates[MOST * BLOCK_OUTPUTS], ups[MOST * BLOCK_OUTPUTS];
        auto keep = [&](float* in) {
            return [=](int64_t row, int64_t output, const float* found, int64_t count) {
                std::memcpy(in + row * BLOCK_OUTPUTS + output - begin, found, count * sizeof(float));
            };
        };
        for (int64_t first = 0; first < num_rows; first += MOST) {
            int64_t count = std::min(MOST, num_rows - first);
            auto these = [&](int64_t row) { return rows(first + row); };
            multiply(these, count, Matrix<W>{gate, l.hidden}, begin, end, l.hidden, keep(gates));
            multiply(these, count, Matrix<W>{up, l.hidden}, begin, end, l.hidden, keep(ups));
            for (int64_t row = 0; row < count; row++)
                by_lanes(end - begin, [&](int64_t at, int64_t lanes) {
                    Floats g = read(gates + row * BLOCK_OUTPUTS + at, lanes);
                    Floats product = g * sigmoid(g) * read(ups + row * BLOCK_OUTPUTS + at, lanes);
                    write(to + (first + row) * width + begin + at, product, lanes);
                });
        }
    }

    // h += down(product), and the same of each token's experts times their weights, in the order of the experts.
    void add_mlp() {
        by_blocks(l.hidden, [&](int64_t begin, int64_t end) {
            if (l.num_experts)
                for (int64_t i = 0; i < s.num_active; i++) add_expert(s.active[i], begin, end);
            add_product(s.product, l.down, l.width, begin, end);
        });
    }

    void add_expert(int64_t expert, int64_t begin, int64_t end) {
        int64_t first = s.starts[expert], num_rows = s.starts[expert + 1] - first, I = l.expert_width;
        multiply(
            Matrix<X>{s.expert_product.data() + first * I, I}, num_rows,
            Matrix<W>{(const W*)l.expert_down + expert * l.hidden * I, I}, begin, end, I,
            [&](int64_t row, int64_t output, const float* found, int64_t count) {
                int64_t slot = s.order[first + row];
                float *to = step.h + slot / l.num_choices * l.hidden + output, weight = s.weights[slot];
                for (int64_t i = 0; i < count; i++) to[i] += weight * found[i];
            });
    }

    const Layer& l;
    const Step& step;
    Scratch<X>& s;
    int64_t T, number;
};

template <class X, class W>
void run_layers(const Layer* layers, int64_t num_layers, const Step& step) {
    static thread_local Scratch<X> memory;
    Scratch<X>& scratch = memory;  // the calling thread's, for all threads of the region
    std::vector<LayerOnTokens<X, W>> parts;
    for (int64_t number = 0; number < num_layers; number++) {
        parts.emplace_back(layers[number], step, scratch, number);
        parts.back().prepare();
    }
    AttentionPlan plan(parts[0].attention(), int(step.num_threads));
#pragma omp parallel num_threads(int(step.num_threads))
    for (LayerOnTokens<X, W>& part : parts) part.run(plan);
}

// logits[i] = norm(h[rows[i]]) @ weight.T, float32 [L, V].
struct Head {
    const void *norm, *weight;
    int64_t hidden, vocab_size, num_rows, num_threads;
    float eps;
    const float* h;
    const int64_t* rows;
    float* logits;
};

template <class X, class W>
void run_head(const Head& head) {
    static thread_local Buffer<X> memory;
    X* normed = room(memory, head.num_rows * head.hidden);
    for (int64_t row = 0; row < head.num_rows; row++)
        norm_row<X>(head.h + head.rows[row] * head.hidden, (const W*)head.norm, head.hidden, head.eps,
                    normed + row * head.hidden);
#pragma omp parallel num_threads(int(head.num_threads))
    by_blocks(head.vocab_size, [&](int64_t begin, int64_t end) {
        multiply(
            Matrix<X>{normed, head.hidden}, head.num_rows, Matrix<W>{(const W*)head.weight, head.hidden}, begin, end,
            head.hidden, [&](int64_t row, int64_t output, const float* found, int64_t count) {
                std::memcpy(head.logits + row * head.vocab_size + output, found, count * sizeof(float));
            });
    });
}

}  // namespace glmforge
