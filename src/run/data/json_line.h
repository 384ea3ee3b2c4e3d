// What a line of a .jsonl file means: which of its keys are ids, labels and masks, which would
// change what is computed, and which are only data about data.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "paradyse/run/data.h"

namespace paradyse {

struct LineDocument {
  Tokens tokens;  // of text, its bytes
  std::optional<Tokens> labels = std::nullopt;
  bool text = false;
  std::int64_t padding = 0;  // tokens left out by attention_mask
};

// Keys that are not used, in the order in which they were first seen.
class UnusedKeys {
 public:
  void add(const std::string& key) {
    if (seen_.insert(key).second) {
      names_.push_back(key);
    }
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> names_;
};

// Bytes as tokens.  Throws where the model has a tokenizer or too small a vocabulary.
Tokens byte_tokens(std::string_view bytes, const DataOptions& options, const std::string& where);

// Throws std::runtime_error beginning with `where`, as read_corpus() says.
LineDocument line_document(
    const std::string& line,
    const DataOptions& options,
    const std::string& where,
    UnusedKeys& unused);

// The line that begins at this byte, without its end.  One that is no text is cut off behind its
// first NUL, and one that is too long for a document (kMostContent) a byte beyond that: the end of
// either may be a terabyte away.
std::string_view line_at(std::string_view bytes, std::size_t begin);

// Whether a line is a whole object with ids, text or a chat.
bool holds_document(const std::string& line);

}  // namespace paradyse
