#include "src/run/data/data_report.h"

#include <algorithm>
#include <ranges>

#include <fmt/format.h>

#include "src/plan/base/text_match.h"

namespace paradyse {
namespace {

std::string number(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// Where the documents come from.
std::string sources(const DataCounts& counts) {
  std::string text;
  const auto add = [&](std::int64_t count, const char* noun) {
    if (count > 0) {
      text += (text.empty() ? " from " : " and ") + number(count, noun);
    }
  };
  add(counts.token_files, "token file");
  add(counts.jsonl_files, "JSONL file");
  add(counts.text_files, "text file");
  if (counts.texts > 0) {
    text += ", bytes of text as tokens";
    if (counts.end_id) {
      text += fmt::format(" and id {} after each text", *counts.end_id);
    }
  }
  return text;
}

std::string names(const std::vector<std::string>& all) {
  constexpr std::size_t kShown = 8;
  const std::string text = joined(all | std::views::take(kShown), ", ");
  return all.size() > kShown ? text + fmt::format(" and {} more", all.size() - kShown) : text;
}

// Far more ids than bytes have: such a vocabulary was hardly made for bytes.
constexpr std::int64_t kManyIds = 1024;

}  // namespace

std::vector<std::string> data_lines(const DataCounts& counts, const std::string& key) {
  std::string line = fmt::format(
      "{}: {}, {}{}",
      key,
      number(counts.documents, "document"),
      number(counts.tokens, "token"),
      sources(counts));
  if (counts.cut > 0) {
    line += fmt::format(
        "; cut {} to {} tokens: {}",
        number(counts.cut, "document"),
        counts.max_tokens,
        number(counts.cut_tokens, "token"));
    line += counts.labels_counted ? fmt::format(
                                        " and {} left out, {} left without a label by the cut",
                                        number(counts.cut_labels, "label"),
                                        number(counts.unlabelled, "document"))
                                  : " left out, and labels, which are not counted";
  }
  if (counts.split > 0) {
    line += fmt::format(
        "; split {} into {} of at most {} tokens",
        number(counts.split, "document"),
        number(counts.pieces, "piece"),
        counts.max_tokens);
  }
  if (counts.skipped_long > 0) {
    line += fmt::format(
        "; skipped {} longer than {} tokens ({})",
        number(counts.skipped_long, "document"),
        counts.max_tokens,
        number(counts.skipped_long_tokens, "token"));
  }
  if (counts.skipped_short > 0) {
    line += fmt::format(
        "; skipped {} shorter than {} tokens ({})",
        number(counts.skipped_short, "document"),
        counts.min_tokens,
        number(counts.skipped_short_tokens, "token"));
  }
  if (counts.padding > 0) {
    line += fmt::format("; {} of padding left out", number(counts.padding, "token"));
  }
  if (!counts.left_out.empty()) {
    line += "; files left out: " + left_out_text(counts.left_out);
  }
  if (!counts.unused_keys.empty()) {
    line += "; keys not used: " + names(counts.unused_keys);
  }
  std::vector<std::string> lines = {line};
  if (counts.labels_counted && counts.labels == 0 && counts.documents > 0) {
    lines.push_back(fmt::format("{}: no label counts: there is nothing to predict", key));
  }
  if (counts.beyond_window > 0) {
    lines.push_back(fmt::format(
        "{}: {} longer than max_position_embeddings, {}: rotary positions continue beyond those "
        "the model was trained with, as in Transformers; data.max_tokens and data.too_long cut, "
        "skip or split documents",
        key,
        number(counts.beyond_window, "document") + (counts.beyond_window == 1 ? " is" : " are"),
        counts.window));
  }
  if (counts.texts > 0 && counts.vocab >= kManyIds) {
    lines.push_back(fmt::format(
        "{}: bytes of text use the ids 0 to 255 of a vocabulary of {}; if the model was made for "
        "a tokenizer, give its ids as .jsonl",
        key,
        counts.vocab));
  }
  return lines;
}

std::string left_out_text(const std::map<std::string, LeftOut>& left_out) {
  return joined(left_out, ", ", [](const auto& why) {
    return fmt::format("{} {} ({})", why.second.files, why.first, why.second.first);
  });
}

nlohmann::ordered_json json_of(const DataCounts& counts) {
  nlohmann::ordered_json left_out = nlohmann::ordered_json::object();
  for (const auto& [why, one] : counts.left_out) {
    left_out[why] = one.files;
  }
  const auto labels = [&](std::int64_t count) {
    return counts.labels_counted ? nlohmann::ordered_json(count) : nlohmann::ordered_json();
  };
  return {
      {"documents", counts.documents},
      {"tokens", counts.tokens},
      {"labels", labels(counts.labels)},
      {"cut", counts.cut},
      {"cut_tokens", counts.cut_tokens},
      {"cut_labels", labels(counts.cut_labels)},
      {"left_without_label", labels(counts.unlabelled)},
      {"split", counts.split},
      {"pieces", counts.pieces},
      {"skipped_long", counts.skipped_long},
      {"skipped_long_tokens", counts.skipped_long_tokens},
      {"skipped_short", counts.skipped_short},
      {"skipped_short_tokens", counts.skipped_short_tokens},
      {"padding", counts.padding},
      {"beyond_max_position_embeddings", counts.beyond_window},
      {"token_files", counts.token_files},
      {"jsonl_files", counts.jsonl_files},
      {"text_files", counts.text_files},
      {"texts", counts.texts},
      {"end_id", counts.end_id ? nlohmann::ordered_json(*counts.end_id) : nlohmann::ordered_json()},
      {"files_left_out", left_out},
      {"unused_keys", counts.unused_keys}};
}

}  // namespace paradyse
