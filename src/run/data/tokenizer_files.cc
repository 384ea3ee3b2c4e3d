#include "src/run/data/tokenizer_files.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <system_error>

#include <nlohmann/json.hpp>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Whether a file of this name belongs to a tokenizer: tokenizer.json, tokenizer_config.json,
// vocab.txt, vocab.json, merges.txt, spiece.model, sentencepiece.bpe.model, tekken.json,
// qwen.tiktoken, ...
bool is_of_tokenizer(const std::string& name) {
  const auto begins = [&](const char* with) { return name.starts_with(with); };
  return begins("tokenizer") || begins("vocab") || begins("merges") || begins("tekken") ||
         begins("special_tokens_map") || begins("added_tokens") || name.ends_with(".model") ||
         name.ends_with(".tiktoken");
}

json json_at(const fs::path& path) {
  const std::optional<std::string> text = content_of(path);
  if (!text) {
    return nullptr;
  }
  try {
    return json_in(*text);
  } catch (const json::exception& error) {
    throw std::runtime_error(path.string() + ": is not JSON: " + error.what());
  }
}

const json* member(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : &*found;
}

std::optional<std::int64_t> id_in(const json* value) {
  if (value != nullptr && value->is_array() && !value->empty()) {
    value = &value->front();
  }
  return value != nullptr && value->is_number_integer() ? std::optional(value->get<std::int64_t>())
                                                        : std::nullopt;
}

// A token as tokenizers write it: a string, or an object with its content.
std::string content(const json* token) {
  if (token != nullptr && token->is_object()) {
    token = member(*token, "content");
  }
  return token != nullptr && token->is_string() ? token->get<std::string>() : std::string();
}

std::optional<std::int64_t> end_of_tokenizer(const fs::path& folder) {
  const json config = json_at(folder / "tokenizer_config.json");
  const std::string end = content(member(config, "eos_token"));
  if (end.empty()) {
    return std::nullopt;
  }
  if (const json* const added = member(config, "added_tokens_decoder");
      added != nullptr && added->is_object()) {
    for (const auto& [key, token] : added->items()) {
      std::int64_t id = 0;
      if (content(&token) == end &&
          std::from_chars(key.data(), key.data() + key.size(), id).ec == std::errc()) {
        return id;
      }
    }
  }
  const json tokenizer = json_at(folder / "tokenizer.json");
  if (const json* const added = member(tokenizer, "added_tokens");
      added != nullptr && added->is_array()) {
    for (const json& token : *added) {
      if (content(&token) == end) {
        return id_in(member(token, "id"));
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::string tokenizer_file(const fs::path& folder) {
  std::string first;  // in order of name: the same on every machine
  for (const fs::path& path : paths_in(folder)) {
    const std::string name = path.filename().string();
    std::error_code error;
    if (is_of_tokenizer(name) && !fs::is_directory(path, error) &&
        (first.empty() || name < first)) {
      first = name;
    }
  }
  return first;
}

std::string tokenizer_sha256(const fs::path& folder) {
  const std::optional<std::string> content = content_of(folder / "tokenizer.json");
  return content ? sha256_hex(*content) : "";
}

std::optional<std::int64_t> end_id_of(const fs::path& folder) {
  if (const auto id = end_of_tokenizer(folder)) {
    return id;
  }
  for (const char* const file : {"generation_config.json", "config.json"}) {
    const json config = json_at(folder / file);
    if (const auto id = id_in(member(config, "eos_token_id"))) {
      return id;
    }
  }
  return std::nullopt;
}

}  // namespace paradyse
