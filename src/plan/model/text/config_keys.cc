#include "src/plan/model/text/config_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "src/plan/base/text_match.h"

namespace paradyse {

using nlohmann::json;

namespace {

// Widest size: token ids and ranks' indices are 32 bits.
constexpr std::int64_t kLargestSize = std::numeric_limits<std::int32_t>::max();
constexpr const char* kPositive = "accepted is a whole number from 1 to 2147483647";

// Keys that leave the loss and its gradients as they are: names, tokens of the tokenizer, how
// weights are stored, what a call returns, how text is sampled, heads for other tasks.  Collected
// from LlamaConfig().to_dict() and GenerationConfig().to_dict() of transformers 4.57.6 and 5.23.0,
// those of the other architectures, and from published models.
constexpr std::array kHarmlessKeys = {
    // who wrote it, what for
    "name_or_path",
    "finetuning_task",
    "task_specific_params",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "is_llama_config",
    "directionality",
    // the tokenizer
    "prefix",
    "max_sequence_length",
    "max_seq_length",
    "max_seq_len",
    "model_max_length",
    "seq_length",
    // how it is stored and computed
    "dtype",
    "torchscript",
    "use_bfloat16",
    "pretraining_tp",  // how sums were rounded by those who trained it
    "use_flash_attn",
    "use_flash_attention",
    "use_flash_attention_2",
    "tf_legacy_loss",
    "use_cache",
    "gradient_checkpointing",
    "chunk_size_feed_forward",
    // what a call returns
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "use_return_dict",
    "tie_last_hidden_states",
    // read by encoder-decoders only
    "is_decoder",
    "tie_encoder_decoder",
    // sampling
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_config",
    "cache_implementation",
    "constraints",
    "diversity_penalty",
    "do_sample",
    "dola_layers",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "guidance_scale",
    "length_penalty",
    "low_memory",
    "max_length",
    "max_matching_ngram_size",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_logits",
    "output_scores",
    "penalty_alpha",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "return_dict_in_generate",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "token_healing",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
    "watermarking_config",
};

// The same, by how their names begin: private ones, of heads for other tasks, of tools.
constexpr const char* kHarmlessBeginnings[] = {
    "_", "classifier_", "pooler_", "summary_", "tokenizer_", "transformers", "unsloth_"};
// ... and end.
constexpr const char* kHarmlessEnds[] = {
    "_token", "_token_id", "_token_ids", "_dtype", "_implementation", "_name", "_version"};

// Words in the names of keys that something is multiplied with.
constexpr const char* kFactors[] = {"factor", "multiplier", "scale", "scaling"};

// Says nothing wherever it stands.
bool is_empty(const json& value) {
  if (const auto* const text = value.get_ptr<const json::string_t*>()) {
    return text->empty() || *text == "none" || *text == "None";
  }
  return value.is_null() || value == false ||
         (value.is_structured() && std::all_of(value.begin(), value.end(), is_empty));
}

}  // namespace

bool is_off(const std::string& key, const json& value) {
  if (!value.is_number()) {
    return is_empty(value);
  }
  const bool factor = std::any_of(std::begin(kFactors), std::end(kFactors), [&](const char* word) {
    return key.find(word) != std::string::npos;
  });
  return value == (factor ? 1 : 0);
}

bool is_harmless(const std::string& key) {
  const auto begins = [&](const char* with) { return key.starts_with(with); };
  const auto ends = [&](const char* with) { return key.ends_with(with); };
  return std::find(kHarmlessKeys.begin(), kHarmlessKeys.end(), key) != kHarmlessKeys.end() ||
         std::any_of(std::begin(kHarmlessBeginnings), std::end(kHarmlessBeginnings), begins) ||
         std::any_of(std::begin(kHarmlessEnds), std::end(kHarmlessEnds), ends);
}

const json* Keys::find(const std::string& key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Keys::refuse(const std::string& key, const std::string& accepted) const {
  const json* value = find(key);
  throw std::invalid_argument(
      where_ + ": " + key + " is " +
      (value != nullptr ? excerpt(*value)
       : says(key)      ? "null"
                        : "missing") +
      "; " + accepted);
}

void Keys::refuse_unknown(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : object_.items()) {
    if (is_harmless(key) || std::find(known.begin(), known.end(), key) != known.end()) {
      continue;
    }
    // Switched off by a mistyped name, what is meant would stay on.
    constexpr std::size_t kMistyped = 2;
    const bool mistyped = !value.is_null() && !nearest_name(key, known, kMistyped).empty();
    if (mistyped || !is_off(key, value)) {
      throw std::invalid_argument(
          where_ + ": key " + excerpt(key) + " is not known" + did_you_mean(key, known) +
          ", and it is " + excerpt(value) +
          "; it might change the mathematics of the model: correct it, or remove it if it does "
          "not");
    }
  }
}

void Keys::expect(const std::string& key, const json& accepted, const std::string& instead) const {
  const json* value = find(key);
  if (value == nullptr && says(key) && accepted == true) {
    refuse(key, "accepted is true, and transformers takes null as false: " + instead);
  }
  const bool off = value != nullptr && is_off(key, accepted) && is_off(key, *value);
  if (value != nullptr && *value != accepted && !off) {
    refuse(key, "accepted is " + accepted.dump() + ": " + instead);
  }
}

std::int64_t Keys::size(const std::string& key) const {
  if (const auto size = size_or_absent(key)) {
    return *size;
  }
  const std::int64_t size = published(key);
  if (size == 0) {
    refuse(key, kPositive);
  }
  const std::string line = key + " = " + std::to_string(size);
  if (std::find(taken_.begin(), taken_.end(), line) == taken_.end()) {
    taken_.push_back(line);
  }
  return size;
}

std::int64_t Keys::published(const std::string& key) const {
  return sizes_.value(key, std::int64_t{0});
}

std::optional<std::int64_t> Keys::size_or_absent(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  // Compared as unsigned: a number over 2^63 would wrap to a negative one.
  if (!value->is_number_unsigned() && !(value->is_number_integer() && *value > 0)) {
    refuse(key, kPositive);
  }
  const auto size = value->get<std::uint64_t>();
  if (size == 0 || size > static_cast<std::uint64_t>(kLargestSize)) {
    refuse(key, kPositive);
  }
  return static_cast<std::int64_t>(size);
}

double Keys::positive(const std::string& key, double absent) const {
  const json* value = find(key);
  if (value == nullptr) {
    return absent;
  }
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0) {
    refuse(key, "accepted is a positive number; leave it out for " + json(absent).dump());
  }
  return value->get<double>();
}

double Keys::probability(const std::string& key, double absent) const {
  const json* value = find(key);
  if (value == nullptr) {
    return absent;
  }
  if (!value->is_number() || !(value->get<double>() >= 0 && value->get<double>() < 1)) {
    refuse(key, "accepted is a number from 0 to below 1; leave it out for " + json(absent).dump());
  }
  return value->get<double>();
}

bool Keys::flag(const std::string& key, bool absent) const {
  const json* value = find(key);
  if (value == nullptr && says(key) && absent) {
    refuse(key, "transformers takes null as false, and a key that is left out as true: say which");
  }
  if (value == nullptr) {
    return absent;
  }
  if (!value->is_boolean()) {
    refuse(key, "accepted is true or false");
  }
  return value->get<bool>();
}

std::string Keys::name(
    const std::string& key,
    const std::string& absent,
    const std::vector<std::string>& accepted,
    const std::string& hint) const {
  const json* value = find(key);
  if (value == nullptr) {
    return absent;
  }
  if (!value->is_string() ||
      std::find(accepted.begin(), accepted.end(), value->get<std::string>()) == accepted.end()) {
    const auto quoted = [](const std::string& one) { return json(one).dump(); };
    refuse(key, "accepted is " + joined(accepted, ", ", quoted) + hint);
  }
  return value->get<std::string>();
}

std::int64_t Keys::padding_id(std::int64_t absent, std::int64_t vocab) const {
  const char* const key = "pad_token_id";
  const json* value = find(key);
  if (value == nullptr) {
    return object_.contains(key) || absent >= vocab ? -1 : absent;
  }
  const bool fits = value->is_number_integer() && *value >= -vocab && *value < vocab;
  if (!fits) {
    refuse(
        key,
        "accepted is null or a whole number from " + std::to_string(-vocab) + " to " +
            std::to_string(vocab - 1));
  }
  const auto id = value->get<std::int64_t>();
  return id < 0 ? id + vocab : id;
}

}  // namespace paradyse
