// Language models: what a Hugging Face `config.json` says of one, sizes and the few switches that
// change its mathematics.
//
// Letters as in the papers: L layers, H hidden width, N query heads, K key/value heads, D width of
// a head, F width of the feed-forward, V vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "paradyse/plan/detail/rope.h"
#include "paradyse/plan/model.h"

namespace paradyse {

struct TextShape {
  // model_type of a family (text_families.h): names of weights
  std::string architecture = "llama";
  std::int64_t layers = 0;         // L, num_hidden_layers
  std::int64_t hidden = 0;         // H, hidden_size
  std::int64_t heads = 0;          // N, num_attention_heads
  std::int64_t kv_heads = 0;       // K, num_key_value_heads; divides N
  std::int64_t head_dim = 0;       // D, head_dim; H / N where the file does not say
  std::int64_t ffn = 0;            // F, intermediate_size
  std::int64_t vocab = 0;          // V, vocab_size
  std::int64_t max_positions = 0;  // max_position_embeddings, 0 = no limit
  double norm_eps = 1e-6;          // rms_norm_eps, layer_norm_eps
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};
  double window_rope_theta = 0;  // of layers with a window, which stretch nothing; 0: as the others
  bool tied = false;             // tie_word_embeddings
  bool causal = true;            // is_causal, as transformers 5 reads it
  double initializer_range = 0.02;

  // What sets the architectures apart.
  Activation activation = Activation::swiglu;
  bool layer_norm = false;           // LayerNorm instead of RMSNorm
  bool norm_bias = true;             // LayerNorms have biases
  bool normed_embedding = false;     // also where norms come before each part
  bool post_norm = false;            // norms after the residual sums; no norm before the head
  bool added_norm = false;           // what attention and MLP add is normed, and not their input
  bool parallel = false;             // the MLP reads what attention reads, and adds both
  bool qk_norm = false;              // an RMSNorm of every query and key head
  bool qk_norm_wide = false;         // that norm is of all queries, and of all keys, of a token
  bool qkv_bias = false;             // of queries, keys and values
  bool out_bias = false;             // of the attention's output
  bool mlp_bias = false;             // of all the MLP's products
  bool learned_positions = false;    // a row a position, instead of rotation
  std::int64_t position_offset = 0;  // position i has row i + offset
  bool padding_in_documents = true;  // false: padding_id would count for no position
  std::int64_t turned = 0;           // columns of a head that are rotated, the first; 0: all
  std::int64_t segments = 0;         // rows of the segment embedding; every token is of segment 0
  bool masked_lm = false;            // labels come with the tokens; a transform before the head
  bool transform_bias = true;        // of its product
  bool head_bias = true;             // of its head
  bool scaled_outputs = false;       // what is added to the residual stream starts smaller
  bool truncated_start = false;      // matrices start without what is far from zero
  bool sandwich_norm = false;        // what attention and MLP add is normed, beside their input
  bool scaled_embedding = false;     // by sqrt(H)
  // Of that transform, where it is not the MLPs'.
  std::optional<Activation> transform_activation = {};
  // A query sees so many tokens in the layers with a window, itself the last (sliding_window) or,
  // in attention to both sides, so many to each side, itself one of them; 0: all
  std::int64_t window = 0;
  // Which layers have the window, from the first on, over and over; empty: all.
  std::vector<bool> windowed = {};
  double norm_offset = 0;        // added to the weights of norms
  double score_root = 0;         // q k is divided by its square root; 0: D
  double score_cap = 0;          // attn_logit_softcapping; 0: none
  double logit_cap = 0;          // final_logit_softcapping; 0: none
  std::int64_t padding_id = -1;  // its embedding gets no gradient from being looked up; -1: none

  // Dropout in training: of the embeddings, of what is added to the residual stream, and of
  // attention's probabilities.
  double embedding_dropout = 0.0;
  double residual_dropout = 0.0;
  std::optional<double> attention_output_dropout = {};  // of what attention adds, where it differs
  double attention_dropout = 0.0;

  [[nodiscard]] bool gated() const { return is_gated(activation); }
  // The window of a layer's attention; 0: it sees all.
  [[nodiscard]] std::int64_t window_of(std::int64_t layer) const {
    const auto kinds = static_cast<std::int64_t>(windowed.size());
    return kinds == 0 || windowed[static_cast<std::size_t>(layer % kinds)] ? window : 0;
  }
  // Rows of the position embedding.
  [[nodiscard]] std::int64_t position_rows() const {
    return learned_positions ? max_positions + position_offset : 0;
  }
  // Parameters of the whole model; a tied matrix counts once.
  [[nodiscard]] std::int64_t parameters() const;
  // A shape reads as the model that it describes.
  operator Model() const;  // NOLINT(google-explicit-constructor)
  friend bool operator==(const TextShape&, const TextShape&) = default;
};

// How long a document may be: by the positions that the model has learned.
LengthLimit length_limit(const TextShape& shape);

// The shape that a parsed `config.json` describes. `source` names the file in messages; `notes` get
// a sentence for each key that is on and passed over.
//
// `model_type` says which keys there are; without one the model is a LLaMA.  Accepts rope keys at
// the top (transformers 4: `rope_theta`, `rope_scaling`) and in `rope_parameters` (transformers 5).
// Throws std::invalid_argument, naming the key and what would be accepted, for a missing key, a
// size that is not positive, K that does not divide N, an odd D of a rotary model, a key that asks
// for mathematics this program does not have, and for any key that is on and that it does not know:
// it cannot tell whether that one changes the mathematics.  A key that is off (false, null, 0 or
// empty) cannot.
TextShape text_shape_from_config(
    const nlohmann::json& config,
    const std::string& source,
    std::vector<std::string>* notes = nullptr);

// The class of transformers that the weights of such a model belong to: "LlamaForCausalLM".
const std::string& class_of(const TextShape& shape);

// The `config.json` of a model of this shape, as transformers 4 writes it and 4 and 5 read it; the
// inverse of the above.
nlohmann::json config_of(const TextShape& shape);

// SHA-256, in hexadecimal, of what the shape says about the mathematics (all but initializer_range,
// dropout, and max_positions where positions are rotated): names the model in a plan.
std::string fingerprint(const TextShape& shape);

// The same without any dropout.
TextShape without_dropout(TextShape shape);

// How a layer turns queries and keys; nothing where positions are learned.
std::optional<Rope> rope_of(const TextShape& shape, std::int64_t layer);

// Embedding, (attention, mlp) x L, transform of a masked LM, head, on one stream: x [tokens, H]; of
// a parallel model what attention adds is another.
Model text_model(const TextShape& shape);
// The shape of a model that text_model() made, with the dropout that it has now.
TextShape text_shape(const Model& model);

}  // namespace paradyse
