#include "src/run/data/json_line.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/layout.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"
#include "src/run/data/plain_json.h"

namespace paradyse {
namespace {

using nlohmann::json;

constexpr std::int64_t kByteValues = 256;

// --- a line as columns ---------------------------------------------------------------------------

// A key of the outermost object, and what is known of its value.
struct Column {
  enum class Kind { null, boolean, number, text, list, object };
  std::string key;
  Kind kind = Kind::null;
  std::string text = {};
  double number = 0;
  // Of a list: whole numbers as they are, truths as 0 and 1, others as 0.
  std::vector<std::int64_t> numbers = {};
  std::size_t first_no_id = std::string::npos;    // the first that is no whole number
  std::size_t first_no_flag = std::string::npos;  // the first that is neither that nor a truth
  bool strings = false;                           // some are
  bool ones = true;                               // all are 1, or true, or 1.0

  [[nodiscard]] bool empty() const {
    return kind == Kind::null || (kind == Kind::boolean && number == 0) ||
           (kind == Kind::text && text.empty()) || (kind == Kind::list && numbers.empty());
  }
};

// Follows the parser, which so makes no tree: lines are long lists of ids.
class Columns final : public nlohmann::json_sax<json> {
 public:
  bool null() override {
    return in_list() ? odd(/*flag=*/false, false) : value(Column::Kind::null);
  }
  bool boolean(bool truth) override { return whole(truth ? 1 : 0, /*truth=*/true); }
  bool number_integer(std::int64_t number) override { return whole(number, false); }
  bool number_unsigned(std::uint64_t number) override {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    return whole(static_cast<std::int64_t>(std::min(number, kMost)), false);
  }
  bool number_float(double number, const std::string& /*digits*/) override {
    if (in_list()) {
      return odd(/*flag=*/false, number == 1);
    }
    return value(Column::Kind::number, number);
  }
  bool string(std::string& text) override {
    if (in_list()) {
      columns_.back().strings = true;
      return odd(/*flag=*/false, false);
    }
    value(Column::Kind::text);
    if (in_object()) {
      columns_.back().text = std::move(text);
    }
    return true;
  }
  bool binary(json::binary_t& /*bytes*/) override { return true; }  // JSON has none
  bool start_object(std::size_t /*size*/) override {
    if (depth_ == 0) {
      object_ = true;
    } else {
      nested(Column::Kind::object);
    }
    ++depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ > 0) {
      nested(Column::Kind::list);
    }
    ++depth_;
    return true;
  }
  bool key(std::string& key) override {
    if (in_object()) {
      if (find(key) != nullptr) {
        twice_ = key;
      }
      columns_.push_back({.key = std::move(key)});
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(
      std::size_t byte, const std::string& /*last*/, const json::exception& error) override {
    error_byte_ = byte;
    error_ = error.what();
    return false;
  }

  [[nodiscard]] bool object() const { return object_; }
  [[nodiscard]] const std::vector<Column>& all() const { return columns_; }
  [[nodiscard]] const std::string& twice() const { return twice_; }
  [[nodiscard]] std::size_t error_byte() const { return error_byte_; }
  [[nodiscard]] const std::string& error() const { return error_; }
  // Null where there is none, or null stands there.
  [[nodiscard]] const Column* given(const std::string& key) const {
    const Column* const column = find(key);
    return column == nullptr || column->kind == Column::Kind::null ? nullptr : column;
  }

 private:
  [[nodiscard]] const Column* find(const std::string& key) const {
    const auto found = std::ranges::find(columns_, key, &Column::key);
    return found == columns_.end() ? nullptr : &*found;
  }
  [[nodiscard]] bool in_object() const { return object_ && depth_ == 1; }
  [[nodiscard]] bool in_list() const {
    return object_ && depth_ == 2 && columns_.back().kind == Column::Kind::list;
  }

  bool value(Column::Kind kind, double number = 0) {
    if (in_object()) {
      columns_.back().kind = kind;
      columns_.back().number = number;
    }
    return true;
  }
  bool whole(std::int64_t number, bool truth) {
    if (!in_list()) {
      return value(
          truth ? Column::Kind::boolean : Column::Kind::number, static_cast<double>(number));
    }
    if (truth) {
      return odd(/*flag=*/true, number == 1, number);
    }
    Column& list = columns_.back();
    list.ones = list.ones && number == 1;
    list.numbers.push_back(number);
    return true;
  }
  // An element of a list that is no id.
  bool odd(bool flag, bool one, std::int64_t number = 0) {
    Column& list = columns_.back();
    list.first_no_id = std::min(list.first_no_id, list.numbers.size());
    if (!flag) {
      list.first_no_flag = std::min(list.first_no_flag, list.numbers.size());
    }
    list.ones = list.ones && one;
    list.numbers.push_back(number);
    return true;
  }
  void nested(Column::Kind kind) {
    if (in_object()) {
      value(kind);
    } else if (in_list()) {
      odd(/*flag=*/false, false);
    }
  }

  bool object_ = false;
  int depth_ = 0;
  std::vector<Column> columns_;
  std::string twice_;
  std::size_t error_byte_ = 0;
  std::string error_;
};

// The escape in `line` that is half of a surrogate pair, or "".
std::string half_surrogate(std::string_view line) {
  const auto unit = [&](std::size_t at) -> int {  // of an escape that begins there; -1: none does
    if (line.substr(at, 2) != "\\u" || at + 6 > line.size()) {
      return -1;
    }
    int value = 0;
    for (const char letter : line.substr(at + 2, 4)) {
      const std::size_t digit = std::string_view("0123456789abcdef0123456789ABCDEF").find(letter);
      if (digit == std::string_view::npos) {
        return -1;
      }
      value = value * 16 + static_cast<int>(digit % 16);
    }
    return value;
  };
  const auto is_low = [](int value) { return value >= 0xdc00 && value <= 0xdfff; };
  for (std::size_t i = line.find('\\'); i < line.size(); i = line.find('\\', i)) {
    const int value = unit(i);
    const bool high = value >= 0xd800 && value <= 0xdbff;
    if (is_low(value) || (high && !is_low(unit(i + 6)))) {
      return std::string(line.substr(i, 6));
    }
    i += high ? 12 : value >= 0 ? 6 : 2;
  }
  return "";
}

// Why the parser gave up.
[[noreturn]] void refuse_json(
    const std::string& line, const Columns& columns, const std::string& where) {
  const std::string escape = half_surrogate(line);
  if (!escape.empty()) {
    refuse(
        where,
        fmt::format(
            "the escape {} is half of a surrogate pair: a character was cut in two; repair the "
            "text (Python: text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace'))",
            escape));
  }
  const std::size_t at = columns.error_byte();  // from 1
  if (columns.error().find("UTF-8") != std::string::npos) {
    const bool surrogate =
        std::ranges::any_of(std::views::iota(std::size_t{0}, line.size()), [&](auto i) {
          return line[i] == '\xed' && i + 1 < line.size() &&
                 static_cast<unsigned char>(line[i + 1]) >= 0xa0;
        });
    refuse(
        where,
        surrogate ? "is not JSON in UTF-8: its bytes ED A0 to ED BF are half of a surrogate pair, "
                    "a character cut in two; repair the text"
                  : fmt::format("is not JSON in UTF-8 (byte {}); convert the file", at));
  }
  const std::string_view rest = std::string_view(line).substr(at == 0 ? 0 : at - 1);
  if (rest.starts_with("aN") || rest.starts_with("NaN") || rest.starts_with("Infinity")) {
    refuse(
        where,
        fmt::format(
            "is not JSON: it has NaN or Infinity (byte {}), for which JSON takes null", at));
  }
  refuse(
      where, fmt::format("is not JSON (in UTF-8; near byte {}); each line takes one object", at));
}

Columns parsed(const std::string& line, const std::string& where) {
  Columns columns;
  if (const std::size_t nul = line.find('\0'); nul != std::string::npos) {  // would end the parser
    refuse(
        where,
        fmt::format(
            "is not JSON: it has a NUL byte (byte {}): the file was damaged, or is UTF-16; repair "
            "it",
            nul));
  }
  if (!PlainJson(line, columns).read()) {
    columns = Columns();
    if (!json::sax_parse(line, &columns)) {
      refuse_json(line, columns, where);
    }
  }
  if (!columns.twice().empty()) {
    refuse(where, "the key '" + columns.twice() + "' appears twice; keep one");
  }
  return columns;
}

// --- what columns mean ---------------------------------------------------------------------------

// Reads one line.
class LineReader {
 public:
  LineReader(const std::string& line, const DataOptions& options, const std::string& where)
      : line_(line), options_(options), where_(where), columns_(parsed(line, where)) {}

  LineDocument document(UnusedKeys& unused) const;

 private:
  // For messages alone; as deep as it may be, for it was gone through, and excerpts are short.
  [[nodiscard]] json tree() const {
    no_nul(line_);
    return json::parse(line_);
  }
  // As it appears in messages.
  [[nodiscard]] std::string excerpt_of(const Column& column) const {
    return excerpt(tree().at(column.key));
  }
  [[nodiscard]] std::string excerpt_of(const Column& list, std::size_t element) const {
    return excerpt(tree().at(list.key).at(element));
  }
  [[noreturn]] void fail(const std::string& what) const { refuse(where_, what); }

  [[nodiscard]] const Column* ids() const;
  [[nodiscard]] Tokens id_list(const Column& column, bool labels) const;
  // A list of 0 and 1, one for each token; null where there is none or it is empty.
  [[nodiscard]] const std::vector<std::int64_t>* flags(const char* key, std::size_t tokens) const;
  // The tokens that are no padding.
  [[nodiscard]] Interval unpadded(std::size_t tokens) const;
  void expect_positions(std::size_t tokens, Interval kept) const;
  void expect_no_other_meaning(const Column& column, std::size_t tokens) const;
  [[noreturn]] void refuse_without_tokens() const;

  const std::string& line_;
  const DataOptions& options_;
  const std::string& where_;
  Columns columns_;
};

// Under which ids may stand; the first is ours, the second Transformers'.
constexpr const char* kIdKeys[] = {"tokens", "input_ids"};
// Whose zeros take a token's label away: TRL's names, and others' for the same.
constexpr const char* kLabelMasks[] = {
    "loss_mask", "completion_mask", "assistant_masks", "assistant_mask", "response_mask"};
// Keys that are read wherever ids are.
bool is_ids(const std::string& key) { return key == kIdKeys[0] || key == kIdKeys[1]; }
bool is_read(const std::string& key) {
  return is_ids(key) || key == "labels" || key == "attention_mask" || key == "position_ids" ||
         std::ranges::find(kLabelMasks, key) != std::end(kLabelMasks);
}

const Column* LineReader::ids() const {
  const Column* const ours = columns_.given(kIdKeys[0]);
  const Column* const theirs = columns_.given(kIdKeys[1]);
  if (ours != nullptr && theirs != nullptr && ours->numbers != theirs->numbers) {
    fail("has tokens and input_ids, which differ; keep one of them");
  }
  return ours != nullptr ? ours : theirs;
}

Tokens LineReader::id_list(const Column& column, bool labels) const {
  if (column.kind != Column::Kind::list) {
    fail(fmt::format("{} is {}; it takes a list of ids", column.key, excerpt_of(column)));
  }
  // Ids are 32 bits wide, whatever the vocabulary.
  const std::int64_t limit =
      std::min<std::int64_t>(options_.vocab, std::numeric_limits<std::int32_t>::max());
  Tokens ids;
  ids.reserve(column.numbers.size());
  for (std::size_t i = 0; i < column.numbers.size(); ++i) {
    const std::int64_t id = column.numbers[i];
    if (i == column.first_no_id || ((id < 0 || id >= limit) && !(labels && id == kNoLabel))) {
      fail(fmt::format(
          "{} {} is {}; an id is a whole number from 0 to {}{}",
          labels ? "label" : "token",
          i,
          excerpt_of(column, i),
          limit - 1,
          labels ? ", or -100 for no label" : ": tokenize with the tokenizer of this model"));
    }
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

const std::vector<std::int64_t>* LineReader::flags(const char* key, std::size_t tokens) const {
  const Column* const column = columns_.given(key);
  if (column == nullptr || column->empty()) {
    return nullptr;
  }
  const bool fits = column->kind == Column::Kind::list &&
                    column->first_no_flag == std::string::npos &&
                    column->numbers.size() == tokens &&
                    std::ranges::all_of(column->numbers, [](auto n) { return n == 0 || n == 1; });
  if (!fits) {
    fail(fmt::format(
        "{} is {}; it takes a list of 0 and 1, one for each of the {} tokens",
        key,
        excerpt_of(*column),
        tokens));
  }
  return &column->numbers;
}

Interval LineReader::unpadded(std::size_t tokens) const {
  const auto count = static_cast<std::int64_t>(tokens);
  const std::vector<std::int64_t>* const seen = flags("attention_mask", tokens);
  if (seen == nullptr) {
    return {0, count};
  }
  const auto first = std::ranges::find(*seen, 1);
  if (first == seen->end()) {
    fail("attention_mask is all 0: no token is attended to; remove the line");
  }
  const auto end = std::find(seen->rbegin(), seen->rend(), 1).base();
  if (std::find(first, end, 0) != end) {
    fail(
        "attention_mask has a 0 between tokens, which is not implemented: documents attend to all "
        "of their tokens; zeros are allowed at the ends, as padding");
  }
  const Interval kept = {first - seen->begin(), end - seen->begin()};
  if (kept.begin > 0 && options_.learned_positions && columns_.given("position_ids") == nullptr) {
    fail(
        "attention_mask begins with 0: this model has learned positions, and padding before the "
        "tokens would shift them; remove the padding, or pad at the end");
  }
  return kept;
}

void LineReader::expect_positions(std::size_t tokens, Interval kept) const {
  const Column* const column = columns_.given("position_ids");
  if (column == nullptr || column->empty()) {
    return;
  }
  bool counts = column->kind == Column::Kind::list && column->first_no_id == std::string::npos &&
                column->numbers.size() == tokens;
  for (std::int64_t i = kept.begin; counts && i < kept.end; ++i) {
    counts = column->numbers[idx(i)] == i - kept.begin;
  }
  if (!counts) {
    fail(fmt::format(
        "position_ids is {}; other positions than 0, 1, 2, ... are not implemented: give each "
        "packed document its own line, and remove the key",
        excerpt_of(*column)));
  }
}

std::string lower(std::string text) {
  for (char& letter : text) {
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return text;
}

// Words in the name of a key that may ask for other mathematics.
constexpr std::string_view kMeaning[] = {
    "mask",
    "label",
    "target",
    "position",
    "segment",
    "token_type",
    "weight",
    "embeds",
    "seq_len",
    "seqlen",
    "seq_idx",
    "decoder",
    "encoder",
    "pixel_values",
    "input_features",
    "input_values",
    "past_key_values"};

// Refuses a column that is not read, unless what stands there cannot matter: null, empty or false,
// segments that are all 0, weights that are all 1; or is no list, and so nothing of tokens.
void LineReader::expect_no_other_meaning(const Column& column, std::size_t tokens) const {
  const std::string name = lower(column.key);
  const auto has = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  if (column.empty() || std::ranges::none_of(kMeaning, has) || name == "special_tokens_mask") {
    return;
  }
  const bool list = column.kind == Column::Kind::list;
  const auto refused = [&](const std::string& why) {
    fail(fmt::format("{} is {}; {}", column.key, excerpt_of(column), why));
  };
  if (has("weight")) {
    if (list ? !column.ones : column.kind == Column::Kind::number && column.number != 1) {
      refused(
          "weights of documents or tokens are not implemented; remove the key, or rename it if it "
          "is not a weight of the loss");
    }
    return;
  }
  if (!list && column.kind != Column::Kind::object) {
    return;  // a class, a title: data about the document
  }
  if (has("token_type") || has("segment")) {
    if (!std::ranges::all_of(column.numbers, [](auto n) { return n == 0; }) ||
        column.first_no_flag != std::string::npos) {
      refused("segments other than 0 are not implemented; give all 0, or remove the key");
    }
    return;
  }
  if (list && column.strings && !has("mask")) {
    return;  // names of labels, not labels
  }
  if (has("label") || has("target")) {
    refused(fmt::format(
        "labels belong under \"labels\", an id or -100 for each of the {} tokens, unshifted; "
        "rename the key, or remove it",
        tokens));
  }
  refused(
      "that may change what is computed and is not implemented; remove the key, or rename it if it "
      "is only information about the document");
}

void LineReader::refuse_without_tokens() const {
  const std::string wanted = "it takes an object with tokens (ids) or text";
  const auto has = [&](const char* key) { return columns_.given(key) != nullptr; };
  for (const char* const key : {"messages", "conversations", "conversation"}) {
    if (has(key)) {
      fail(fmt::format(
          "has {}, a chat, and neither tokens nor text; apply the model's chat template "
          "(Transformers: "
          "apply_chat_template), and give tokens, with labels for what is to be learned",
          key));
    }
  }
  for (const char* const key : {"prompt", "completion", "chosen", "rejected", "instruction"}) {
    if (has(key)) {
      fail(fmt::format(
          "has {}, and neither tokens nor text; tokenize prompt and answer together, and give "
          "tokens, "
          "with labels that are -100 for the prompt",
          key));
    }
  }
  fail("is " + excerpt(tree()) + "; " + wanted);
}

LineDocument LineReader::document(UnusedKeys& unused) const {
  const Column* const given = columns_.object() ? ids() : nullptr;
  const Column* const labels = columns_.object() ? columns_.given("labels") : nullptr;
  if (options_.labels && (given == nullptr || labels == nullptr)) {
    fail(
        "is " + excerpt(tree()) +
        "; this model predicts masked tokens: a line takes an object with tokens and labels");
  }
  const Column* const text =
      columns_.object() && given == nullptr ? columns_.given("text") : nullptr;
  LineDocument document;
  std::size_t count = 0;
  if (given != nullptr) {
    document.tokens = id_list(*given, /*labels=*/false);
    count = document.tokens.size();
    if (labels != nullptr) {
      document.labels = id_list(*labels, /*labels=*/true);
      if (document.labels->size() != count) {
        fail(fmt::format(
            "has {} tokens and {} labels; every token takes one (-100: none)",
            count,
            document.labels->size()));
      }
    }
    for (const char* const key : kLabelMasks) {
      if (const std::vector<std::int64_t>* const counted = flags(key, count)) {
        if (!document.labels) {
          document.labels = document.tokens;
        }
        for (std::size_t i = 0; i < count; ++i) {
          if ((*counted)[i] == 0) {
            (*document.labels)[i] = kNoLabel;
          }
        }
      }
    }
    const Interval kept = unpadded(count);
    expect_positions(count, kept);
    if (kept.size() < static_cast<std::int64_t>(count)) {
      document.padding = static_cast<std::int64_t>(count) - kept.size();
      const auto keep = [&](Tokens& list) {
        list.assign(list.begin() + kept.begin, list.begin() + kept.end);
      };
      keep(document.tokens);
      if (document.labels) {
        keep(*document.labels);
      }
    }
  } else if (labels != nullptr) {
    fail(
        "has labels but no tokens; labels are ids, one for each id of tokens: give tokens, or "
        "remove the labels");
  } else if (text != nullptr) {
    if (text->kind != Column::Kind::text) {
      fail(fmt::format("text is {}; it takes a string", excerpt_of(*text)));
    }
    document.text = true;
    document.tokens = byte_tokens(text->text, options_, where_);
    count = document.tokens.size();
  } else {
    refuse_without_tokens();
  }
  for (const Column& column : columns_.all()) {
    if (column.kind == Column::Kind::null || &column == text ||
        (given != nullptr && is_read(column.key))) {
      continue;
    }
    expect_no_other_meaning(column, count);
    unused.add(column.key);
  }
  return document;
}

}  // namespace

Tokens byte_tokens(std::string_view bytes, const DataOptions& options, const std::string& where) {
  if (options.labels) {
    refuse(
        where,
        "is text, but this model predicts masked tokens; give a .jsonl file with {\"tokens\": "
        "[...], "
        "\"labels\": [...]} a line");
  }
  if (!options.tokenizer.empty()) {
    refuse(
        where,
        "is text, and the model has a tokenizer (" + options.tokenizer +
            "), which this program does not run, and its ids are not bytes; tokenize the text, and "
            "give a .jsonl file with {\"tokens\": [...]} a line; or use the bytes of text as ids "
            "with --bytes (data.bytes = true)");
  }
  if (options.vocab < kByteValues) {
    refuse(
        where,
        "is text, whose tokens are bytes, but the vocabulary has " + std::to_string(options.vocab) +
            " ids; take a model with vocab_size of at least 256, or give token ids as .jsonl");
  }
  Tokens tokens;
  tokens.reserve(bytes.size());
  for (const char byte : bytes) {
    tokens.push_back(static_cast<unsigned char>(byte));
  }
  return tokens;
}

LineDocument line_document(
    const std::string& line,
    const DataOptions& options,
    const std::string& where,
    UnusedKeys& unused) {
  return LineReader(line, options, where).document(unused);
}

std::string_view line_at(std::string_view bytes, std::size_t begin) {
  constexpr std::size_t kBlock = 65536;
  const std::string_view most = bytes.substr(begin, kMostContent + 1);
  for (std::size_t at = 0; at < most.size(); at += kBlock) {
    const std::string_view block = most.substr(at, kBlock);
    const std::size_t end = std::min(block.find('\n'), block.size());
    if (const std::size_t nul = block.substr(0, end).find('\0'); nul != std::string_view::npos) {
      return most.substr(0, at + nul + 1);
    }
    if (end < block.size()) {
      return most.substr(0, at + end);
    }
  }
  return most;
}

bool holds_document(const std::string& line) {
  Columns columns;
  if (line.find('\0') != std::string::npos || !json::sax_parse(line, &columns)) {
    return false;
  }
  return std::ranges::any_of(columns.all(), [](const Column& column) {
    const bool chat = column.key == "messages" || column.key == "conversations";
    return column.kind == Column::Kind::text
               ? column.key == "text"
               : column.kind == Column::Kind::list && (chat || is_ids(column.key));
  });
}

}  // namespace paradyse
