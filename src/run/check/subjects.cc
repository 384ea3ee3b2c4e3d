#include <algorithm>
#include <random>

#include "paradyse/plan/index.h"
#include "paradyse/run/data.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/check/check.h"
#include "src/run/check/check_case.h"

namespace paradyse {
namespace {

// The same numbers on every machine: the standard's distributions differ between libraries.
std::vector<std::vector<std::int32_t>> random_documents(
    const std::vector<std::int64_t>& lengths, std::int64_t vocab) {
  std::mt19937_64 random(7);
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t length : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      document.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab)));
    }
  }
  return documents;
}

// Of a masked LM: about every third token is another one.
std::vector<std::vector<std::int32_t>> labels_of(
    const Model& model, const std::vector<std::vector<std::int32_t>>& documents) {
  if (!model.masked_lm) {
    return {};
  }
  std::mt19937_64 random(8);
  std::vector<std::vector<std::int32_t>> labels = documents;
  for (auto& of_document : labels) {
    for (std::int32_t& label : of_document) {
      const auto id =
          static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model.vocab()));
      label = random() % 3 == 0 ? id : kNoLabel;
    }
  }
  return labels;
}

// Weights wide enough, and norms apart enough from one, that no mistake hides behind them.
void fill_widely(Parameters& parameters) {
  parameters.initialize(11);
  for (PartParameters& part : parameters.parts()) {
    for (const at::Tensor& vector : part.vectors) {
      add_wave(vector, 0.25, 1);
    }
    keep_from_corners(part, parameters.model());
  }
}

}  // namespace

CheckSubject check_subject(
    const std::string& name,
    const Model& model,
    const std::function<void(Parameters& parameters)>& fill,
    const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> within = lengths;
  const LengthLimit& limit = model.limits.longest;
  for (std::int64_t& length : within) {
    length = limit.allows(length) ? length : limit.tokens;
  }
  const auto documents = random_documents(within, model.vocab());
  return {
      .name = name,
      .model = model,
      .fill = fill,
      .documents = documents,
      .labels = labels_of(model, documents)};
}

std::vector<CheckSubject> built_in_subjects() {
  const auto subject =
      [](const char* name, TextShape model, const std::vector<std::int64_t>& lengths) {
        model.layers = 2;
        model.rope_theta = 500.0;
        model.initializer_range = 0.2;  // at 0.3 the noise in a key bias's zero gradient nears 2e-5
        return check_subject(name, model, fill_widely, lengths);
      };
  TextShape grouped;  // query heads share key/value heads
  grouped.hidden = 12;
  grouped.heads = 6;
  grouped.kv_heads = 2;
  grouped.head_dim = 4;
  grouped.ffn = 13;
  grouped.vocab = 31;
  TextShape shared = grouped;  // one key/value head, tied head
  shared.heads = 5;
  shared.kv_heads = 1;
  shared.hidden = 14;
  shared.ffn = 11;
  shared.vocab = 29;
  shared.tied = true;
  TextShape few = grouped;  // fewer heads, and rows of all else, than ranks
  few.heads = 2;
  few.kv_heads = 2;
  few.ffn = 3;
  few.vocab = 7;
  TextShape qwen2 = grouped;
  qwen2.architecture = "qwen2";
  qwen2.qkv_bias = true;
  qwen2.head_dim = 16;  // CUDA's flash attention takes 8, 16, ...
  TextShape qwen3 = grouped;
  qwen3.architecture = "qwen3";
  qwen3.qk_norm = true;
  TextShape windowed = grouped;  // in one layer of two
  windowed.architecture = "qwen2";
  windowed.qkv_bias = true;
  windowed.head_dim = 16;
  windowed.window = 3;
  windowed.windowed = {true, false};
  TextShape gpt2;  // learned positions, LayerNorm, biases; as many key/value heads as query heads
  gpt2.architecture = "gpt2";
  gpt2.hidden = 15;
  gpt2.heads = gpt2.kv_heads = 3;
  gpt2.head_dim = 5;
  gpt2.ffn = 13;
  gpt2.vocab = 31;
  gpt2.max_positions = 20;
  gpt2.learned_positions = gpt2.layer_norm = true;
  gpt2.qkv_bias = gpt2.out_bias = gpt2.mlp_bias = true;
  gpt2.tied = true;
  gpt2.activation = Activation::gelu_tanh;
  TextShape opt = gpt2;
  opt.architecture = "opt";
  opt.position_offset = 2;
  opt.activation = Activation::relu;
  TextShape bert = gpt2;  // bidirectional, norms after the sums, masked tokens
  bert.architecture = "bert";
  bert.causal = false;
  bert.head_dim = 8;  // flash attention, as above
  bert.post_norm = bert.masked_lm = true;
  bert.segments = 2;
  bert.activation = Activation::gelu;
  return {
      subject("gqa 6/2", grouped, {1, 9, 2, 17, 3}),
      subject("mqa 5/1 tied", shared, {3, 1, 8, 2}),
      subject("mha 2/2", few, {1, 2, 6}),
      subject("qwen2", qwen2, {3, 1, 8}),
      subject("qwen3", qwen3, {3, 1, 8}),
      subject("window", windowed, {9, 1, 4}),
      subject("gpt2", gpt2, {3, 1, 8}),
      subject("opt", opt, {3, 1, 8}),
      subject("bert", bert, {3, 1, 8})};
}

}  // namespace paradyse
