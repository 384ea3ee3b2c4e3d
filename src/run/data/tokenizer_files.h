// What a model folder says of its tokenizer, which is not run: that it has one, and which id ends a
// document.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace paradyse {

// The name of a file of a tokenizer in a model folder, or "".
std::string tokenizer_file(const std::filesystem::path& folder);

// The SHA-256 of tokenizer.json, by which paradyse-data names a tokenizer; "": there is none.
std::string tokenizer_sha256(const std::filesystem::path& folder);

// The id of the tokenizer's eos_token, else eos_token_id of generation_config.json, else of
// config.json; the first where there are several.  Throws std::runtime_error naming a file that is
// no JSON.
std::optional<std::int64_t> end_id_of(const std::filesystem::path& folder);

}  // namespace paradyse
