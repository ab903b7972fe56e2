// Causal attention of new tokens over keys and values that lie in pages.
//
// The queries of a few tokens and of all heads that share a key/value head meet the keys CHUNK at a time; each row keeps
// its largest score, its sum and its output, and the next chunk's are merged into them (Milakov and Gimelshein, 2018,
// arXiv 1805.02867). Where there are too few rows for all threads, chunks are computed side by side and merged after:
// the same sums in the same order, so that an answer depends neither on the batch nor on the number of threads.

#pragma once

#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "matmul.h"

namespace glmforge {

constexpr int64_t CHUNK = 256;
constexpr int64_t ROWS_OF_BLOCK = 16;

// Memory on borders of cache lines: a vector that lies across one is read twice.
template <class T>
struct Aligned {
    using value_type = T;
    Aligned() = default;
    template <class U>
    Aligned(const Aligned<U>&) {}
    T* allocate(size_t count) { return (T*)::operator new(count * sizeof(T), std::align_val_t(CACHE_LINE)); }
    void deallocate(T* from, size_t) { ::operator delete(from, std::align_val_t(CACHE_LINE)); }
    template <class U>
    bool operator==(const Aligned<U>&) const { return true; }
    template <class U>
    bool operator!=(const Aligned<U>&) const { return false; }
};

// A scratch buffer that is kept from call to call.
template <class T>
using Buffer = std::vector<T, Aligned<T>>;

template <class T>
T* room(Buffer<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
}

// Where new tokens belong, see `PagedTokens` in paged_attention.py.
struct Tokens {
    int64_t num_tokens, num_sequences, max_pages, page_size;
    const int32_t* starts;
    const int32_t* lengths;
    const int32_t* pages;
    const int64_t* slots;
};

template <class X>
struct Attention {
    int64_t num_heads, num_kv_heads, head_dim;
    const X* q;  // [T, H, P]
    const X* keys;  // [N, G, C, P]
    const X* values;
    X* o;
    Tokens tokens;

    int64_t group() const { return num_heads / num_kv_heads; }

    // Token times H plus head of a row of a block: the heads of its first token, then those of the next.
    int64_t query(int64_t first, int64_t kv_head, int64_t row) const {
        return (first + row / group()) * num_heads + kv_head * group() + row % group();
    }

    // Where the keys and the values of tokens [begin, begin + count) of a sequence lie.
    void find(int64_t sequence, int64_t begin, int64_t count, int64_t kv_head, const X** k, const X** v) const {
        const int32_t* page = tokens.pages + sequence * tokens.max_pages + begin / tokens.page_size;
        int64_t place = begin % tokens.page_size;
        for (int64_t at = 0; at < count; page++, place = 0) {
            int64_t row = (*page * num_kv_heads + kv_head) * tokens.page_size + place;
            int64_t end = std::min(count, at + tokens.page_size - place);
            for (; at < end; at++, row++) k[at] = keys + row * head_dim, v[at] = values + row * head_dim;
        }
    }
};

// Tokens [first, first + count) of the step, of one sequence, and the query heads of one key/value head.
struct Block {
    int64_t sequence, first, count, position, kv_head;  // position: of the first token
    int64_t num_keys() const { return position + count; }
    int64_t num_chunks() const { return (num_keys() + CHUNK - 1) / CHUNK; }
};

// Of every row: the largest score, the sum of exponentials, the weighted sum of values.
struct State {
    float* largest;
    float* sum;
    float* output;

    static int64_t size(int64_t num_rows, int64_t head_dim) { return num_rows * (head_dim + 2); }

    State(float* memory, int64_t num_rows) : largest(memory), sum(memory + num_rows), output(memory + 2 * num_rows) {}
};

template <class X>
std::vector<Block> blocks_of(const Attention<X>& a) {
    std::vector<Block> blocks;
    int64_t most = std::max<int64_t>(1, ROWS_OF_BLOCK / a.group());
    for (int64_t sequence = 0; sequence < a.tokens.num_sequences; sequence++) {
        int64_t end = a.tokens.starts[sequence + 1], past = a.tokens.lengths[sequence] - end;
        for (int64_t first = a.tokens.starts[sequence]; first < end; first += most)
            for (int64_t kv_head = 0; kv_head < a.num_kv_heads; kv_head++)
                blocks.push_back({sequence, first, std::min(most, end - first), past + first, kv_head});
    }
    return blocks;
}

// The pages of a sequence lie anywhere, and the processor does not guess where the next one is.
constexpr int64_t AHEAD = 16;

template <class X>
inline void fetch(const X* row, int64_t head_dim) {
    for (int64_t at = 0; at < head_dim; at += 64 / sizeof(X)) __builtin_prefetch(row + at);
}

// output[row] = sum over keys of weights[row] * values[key], VECTORS * LANES numbers of it or `count` of the last LANES.
template <int ROWS, int VECTORS, class X>
inline void add_values(
    const float* weights, const X* const* values, int64_t num_keys, int64_t at, float* output, int64_t head_dim,
    int64_t count) {
    Floats sums[ROWS][VECTORS] = {};
    for (int64_t key = 0; key < num_keys; key++) {
        Floats value[VECTORS];
        if (at == 0) fetch(values[std::min(key + AHEAD, num_keys - 1)], head_dim);
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++)
            value[i] = VECTORS == 1 ? read(values[key] + at, count) : load(values[key] + at + i * LANES);
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) sums[row][i] += value[i] * weights[row * CHUNK + key];
    }
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < VECTORS; i++)
            write(output + row * head_dim + at + i * LANES, sums[row][i], VECTORS == 1 ? count : LANES);
}

template <int ROWS, class X>
inline void weigh_values(
    const float* weights, const X* const* values, int64_t num_keys, float* output, int64_t head_dim) {
    int64_t at = 0;
    for (; at + 4 * LANES <= head_dim; at += 4 * LANES)
        add_values<ROWS, 4>(weights, values, num_keys, at, output, head_dim, LANES);
    for (; at + 2 * LANES <= head_dim; at += 2 * LANES)
        add_values<ROWS, 2>(weights, values, num_keys, at, output, head_dim, LANES);
    for (; at < head_dim; at += LANES)
        add_values<ROWS, 1>(weights, values, num_keys, at, output, head_dim, std::min<int64_t>(LANES, head_dim - at));
}

// A row's scores become exponentials, those of the first `num_visible` keys; the others' become 0. Gives their sum.
// `scores` has room for a whole number of vectors.
inline float exponentials(float* scores, int64_t num_visible, int64_t num_keys, float scale, float& largest) {
    const float lowest = -std::numeric_limits<float>::infinity();
    int64_t end = (num_keys + LANES - 1) / LANES * LANES;
    largest = lowest;
    if (num_visible <= 0) {
        std::fill(scores, scores + end, 0.0f);
        return 0;
    }
    std::fill(scores + num_visible, scores + end, lowest);
    Floats most = broadcast(lowest), total = {};
    for (int64_t at = 0; at < end; at += LANES) {
        Floats scaled = load(scores + at) * scale;
        store(scores + at, scaled);
        most = scaled > most ? scaled : most;
    }
    for (int i = 0; i < LANES; i++) largest = std::max(largest, most[i]);
    for (int64_t at = 0; at < end; at += LANES) {
        Floats e = exp(load(scores + at) - largest);
        store(scores + at, e);
        total += e;
    }
    return sum(total);
}

// What the rows of a block find in the keys [chunk * CHUNK, (chunk + 1) * CHUNK).
template <class X>
void attend_to_chunk(const Attention<X>& a, const Block& block, int64_t chunk, State found) {
    thread_local Buffer<float> memory;
    int64_t group = a.group(), num_rows = block.count * group, head_dim = a.head_dim;
    int64_t begin = chunk * CHUNK, num_keys = std::min(CHUNK, block.num_keys() - begin);
    float* scores = room(memory, num_rows * CHUNK);
    const X *keys[CHUNK], *values[CHUNK];
    a.find(block.sequence, begin, num_keys, block.kv_head, keys, values);
    multiply(
        [&](int64_t row) { return a.q + a.query(block.first, block.kv_head, row) * head_dim; }, num_rows,
        [&](int64_t key) {
            fetch(keys[std::min(key + AHEAD, num_keys - 1)], head_dim);
            return keys[key];
        },
        0, num_keys, head_dim,
        [&](int64_t row, int64_t key, const float* dots, int64_t count) {
            std::memcpy(scores + row * CHUNK + key, dots, count * sizeof(float));
        });
    float scale = 1 / std::sqrt(float(head_dim));
    for (int64_t row = 0; row < num_rows; row++) {
        int64_t num_visible = std::min(num_keys, block.position + row / group + 1 - begin);
        found.sum[row] = exponentials(scores + row * CHUNK, num_visible, num_keys, scale, found.largest[row]);
    }
    int64_t row = 0;
    for (; row + 4 <= num_rows; row += 4)
        weigh_values<4>(scores + row * CHUNK, values, num_keys, found.output + row * head_dim, head_dim);
    const float* rest = scores + row * CHUNK;
    float* output = found.output + row * head_dim;
    switch (num_rows - row) {
        case 3: weigh_values<3>(rest, values, num_keys, output, head_dim); break;
        case 2: weigh_values<2>(rest, values, num_keys, output, head_dim); break;
        case 1: weigh_values<1>(rest, values, num_keys, output, head_dim); break;
    }
}

inline void clear(State state, int64_t num_rows, int64_t head_dim) {
    std::fill_n(state.largest, num_rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, num_rows, 0.0f);
    std::fill_n(state.output, num_rows * head_dim, 0.0f);
}

// Adds what was found in the next chunk to what was found before it.
inline void merge(State state, State found, int64_t num_rows, int64_t head_dim) {
    for (int64_t row = 0; row < num_rows; row++) {
        if (found.sum[row] == 0) continue;  // it sees none of the chunk
        float largest = std::max(state.largest[row], found.largest[row]);
        float old_scale = std::exp(state.largest[row] - largest), new_scale = std::exp(found.largest[row] - largest);
        state.largest[row] = largest;
        state.sum[row] = state.sum[row] * old_scale + found.sum[row] * new_scale;
        float *to = state.output + row * head_dim, *from = found.output + row * head_dim;
        by_lanes(head_dim, [&](int64_t at, int64_t count) {
            write(to + at, read(to + at, count) * old_scale + read(from + at, count) * new_scale, count);
        });
    }
}

template <class X>
void write_output(const Attention<X>& a, const Block& block, State state) {
    int64_t group = a.group(), head_dim = a.head_dim;
    for (int64_t row = 0; row < block.count * group; row++) {
        X* to = a.o + a.query(block.first, block.kv_head, row) * head_dim;
        float *from = state.output + row * head_dim, scale = 1 / state.sum[row];
        by_lanes(head_dim, [&](int64_t at, int64_t count) { write(to + at, read(from + at, count) * scale, count); });
    }
}

// Called by all threads of a region; waits for all.
template <class X>
void attend_in_blocks(const Attention<X>& a, const std::vector<Block>& blocks) {
    thread_local Buffer<float> memory;
    int64_t head_dim = a.head_dim;
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < blocks.size(); i++) {
        int64_t num_rows = blocks[i].count * a.group(), size = State::size(num_rows, head_dim);
        float* states = room(memory, 2 * size);
        State state(states, num_rows), found(states + size, num_rows);
        clear(state, num_rows, head_dim);
        for (int64_t chunk = 0; chunk < blocks[i].num_chunks(); chunk++) {
            attend_to_chunk(a, blocks[i], chunk, found);
            merge(state, found, num_rows, head_dim);
        }
        write_output(a, blocks[i], state);
    }
}

// The same with the chunks of each block side by side. `memory` has a state for each chunk and one more for each block.
template <class X>
void attend_in_chunks(const Attention<X>& a, const std::vector<Block>& blocks, int64_t max_chunks, float* memory) {
    int64_t head_dim = a.head_dim, size = State::size(std::max(ROWS_OF_BLOCK, a.group()), head_dim);
    auto memory_of = [&](size_t i, int64_t chunk) { return memory + (i * (max_chunks + 1) + chunk) * size; };
#pragma omp for schedule(dynamic) collapse(2)
    for (size_t i = 0; i < blocks.size(); i++)
        for (int64_t chunk = 0; chunk < max_chunks; chunk++)
            if (chunk < blocks[i].num_chunks())
                attend_to_chunk(a, blocks[i], chunk, State(memory_of(i, chunk), blocks[i].count * a.group()));
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < blocks.size(); i++) {
        int64_t num_rows = blocks[i].count * a.group();
        State state(memory_of(i, max_chunks), num_rows);
        clear(state, num_rows, head_dim);
        for (int64_t chunk = 0; chunk < blocks[i].num_chunks(); chunk++)
            merge(state, State(memory_of(i, chunk), num_rows), num_rows, head_dim);
        write_output(a, blocks[i], state);
    }
}

// The blocks of a step, and how they are shared among threads: the same for all layers.
struct AttentionPlan {
    std::vector<Block> blocks;
    int64_t max_chunks = 0;
    bool in_chunks = false;
    Buffer<float> memory;

    template <class X>
    AttentionPlan(const Attention<X>& a, int num_threads) : blocks(blocks_of(a)) {
        for (const Block& block : blocks) max_chunks = std::max(max_chunks, block.num_chunks());
        in_chunks = max_chunks > 1 && int64_t(blocks.size()) < 4 * num_threads;
        int64_t size = State::size(std::max(ROWS_OF_BLOCK, a.group()), a.head_dim);
        if (in_chunks) memory.resize(blocks.size() * (max_chunks + 1) * size);
    }
};

template <class X>
void attend(const Attention<X>& a, AttentionPlan& plan) {
    if (plan.in_chunks)
        attend_in_chunks(a, plan.blocks, plan.max_chunks, plan.memory.data());
    else
        attend_in_blocks(a, plan.blocks);
}

// Puts the keys or values of token t, [T, G, P], where they belong.
template <class X>
void write_page(const X* from, X* pages, int64_t t, const Tokens& tokens, int64_t num_kv_heads, int64_t head_dim) {
    int64_t page = tokens.slots[t] / tokens.page_size, place = tokens.slots[t] % tokens.page_size;
    for (int64_t g = 0; g < num_kv_heads; g++)
        std::memcpy(
            pages + ((page * num_kv_heads + g) * tokens.page_size + place) * head_dim,
            from + (t * num_kv_heads + g) * head_dim, head_dim * sizeof(X));
}

}  // namespace glmforge
