// What a model is, as far as planning goes: sizes and the few switches that change its mathematics.
//
// Read from a Hugging Face `config.json` or a TOML model file with the same keys (docs/tour.md).
// Letters as in the papers: L layers, H hidden width, N query heads, K key/value heads, D width of
// a head, F width of the feed-forward, V vocabulary.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace paradyse {

struct ModelShape {
  std::string architecture = "llama";
  std::int64_t layers = 0;         // L, num_hidden_layers
  std::int64_t hidden = 0;         // H, hidden_size
  std::int64_t heads = 0;          // N, num_attention_heads
  std::int64_t kv_heads = 0;       // K, num_key_value_heads; divides N
  std::int64_t head_dim = 0;       // D, head_dim; H / N where the file does not say
  std::int64_t ffn = 0;            // F, intermediate_size
  std::int64_t vocab = 0;          // V, vocab_size
  std::int64_t max_positions = 0;  // max_position_embeddings, 0 = no limit
  double norm_eps = 1e-6;          // rms_norm_eps
  double rope_theta = 10000.0;
  bool tied = false;   // tie_word_embeddings
  bool causal = true;  // is_causal, as transformers 5 reads it
  double initializer_range = 0.02;

  // Parameters of the whole model; a tied matrix counts once.
  [[nodiscard]] std::int64_t parameters() const;
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// The shape that a parsed `config.json` describes. `source` names the file in messages.
//
// Accepts `rope_theta` at the top (transformers 4) and in `rope_parameters` (transformers 5).
// Throws std::invalid_argument, naming the key and what would be accepted, for a missing key, a
// size that is not positive, K that does not divide N, an odd D, a key that asks for mathematics
// this program does not have (rope scaling, biases, another activation), and for any key it does
// not know: it cannot tell whether that one changes the mathematics.
ModelShape model_shape_from_config(const nlohmann::json& config, const std::string& source);

// The `config.json` of a model of this shape, as transformers 4 writes it and 4 and 5 read it; the
// inverse of the above.
nlohmann::json config_of(const ModelShape& shape);

// SHA-256, in hexadecimal, of what the shape says about the mathematics (all but max_positions and
// initializer_range): names the model in a plan.
std::string fingerprint(const ModelShape& shape);

}  // namespace paradyse
