// The architectures: how the configuration of each is read and written.  One file a family.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/model/text/config_keys.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/model/text/weight_names.h"

namespace paradyse {

struct TextFamily {
  std::string model_type;
  std::string architecture;            // the class, in `architectures`
  std::vector<std::string> read_keys;  // that become fields of the shape
  std::vector<FixedKey> fixed_keys;
  nlohmann::json sizes;  // those that transformers takes where the file does not say them
  // Of keys that are known and, where fixed, as they must be.
  std::function<TextShape(const Keys& keys)> read = {};
  std::function<nlohmann::json(const TextShape& shape)> write = {};
  WeightNames names = {};
  // Other names of keys, as transformers takes them (its attribute_map): other, own.
  std::vector<std::pair<std::string, std::string>> also_called = {};
  // How its classes' names begin, in lower case; "": as the model_type.
  std::string class_begins = {};
};

std::vector<TextFamily> llama_families();  // llama, mistral, olmo2, phi3, qwen2, qwen3
TextFamily gemma2_family();
TextFamily gemma3_family();
TextFamily gpt2_family();
TextFamily gpt_neox_family();
TextFamily opt_family();
TextFamily bert_family();
TextFamily roberta_family();
TextFamily distilbert_family();
TextFamily modernbert_family();

// Of a LLaMA's weights, which the names of its descendants differ from.
WeightNames llama_names();

// How a family calls rope keys at the top, and which it has.
struct RopeKeys {
  const char* theta = "rope_theta";
  const char* part = nullptr;  // of each head's columns, the first, that turn; null: all do
  double absent_part = 1.0;
  // Names that some versions of transformers write beside `theta` and `part`, with the same values.
  const char* also_theta = nullptr;
  const char* also_part = nullptr;
  bool stretched = true;  // over more positions than it was trained on
};

// The rope keys of a configuration, in either spelling, go into `shape`, whose head_dim is there;
// and back.
void read_rope(const Keys& keys, TextShape& shape, const RopeKeys& names = {});
// The part of a head's columns that turns, as transformers makes whole columns of it.
double turned_part(const TextShape& shape);
void write_rope(const TextShape& shape, nlohmann::json& config);

// Which layers have a window, as `layer_types` says it; nothing where the key is not there.  Throws
// where that names another kind, or not one for each layer.
std::optional<std::vector<bool>> read_windowed_layers(const Keys& keys, std::int64_t layers);
// Into the shape, as it is put there: nothing where all layers have the window, no window where
// none has.
void set_windows(TextShape& shape, std::int64_t window, std::vector<bool> windowed);
// `layer_types` as a configuration has it.
nlohmann::json layer_types_of(const TextShape& shape);

// The activation function that `key` names, one without a gate; and its name.
Activation read_activation(const Keys& keys, const std::string& key, const std::string& absent);
std::string activation_name(Activation activation);
// padding_id as a configuration has it.
nlohmann::json padding_of(const TextShape& shape);

// The hidden width, the heads (as many for keys and values) and their width, hidden / heads unless
// `head_dim` says it.  `hidden` and `heads` name the keys.
void read_heads(
    const Keys& keys,
    const std::string& hidden,
    const std::string& heads,
    std::optional<std::int64_t> head_dim,
    TextShape& shape);

}  // namespace paradyse
