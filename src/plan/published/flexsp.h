// The models and the cluster of the FlexSP publication (arXiv 2412.01523) as numbers: coefficients
// released with it, and its cost model as it stands there.
//
// A document of s tokens in an Ulysses group of d ranks takes, in milliseconds,
//   t(s, d) = [a1 s^2 + a2 s + (16 L h s / 2^20) / v(d)] / d
// and a group has room for d * floor((30 * 1024 - 16 * 1024 P / N) / activation) tokens, where P
// grows with the context; a micro-batch takes b1 beside its slowest group.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse {

struct FlexspModel {
  const char* name = "";       // "flexsp-7b"
  double activation_mb = 0;    // a token, of 2^20 bytes
  double a1_ms = 0;            // a token squared
  double a2_ms = 0;            // a token
  double b1_ms = 0;            // a micro-batch: ZeRO-3's traffic
  double parameters_192k = 0;  // of 2^30, with learned positions for contexts of 192 thousand
  double parameters_384k = 0;
  int layers = 0;              // L
  int hidden = 0;              // h

  // Of 2^30, for a context of so many tokens.
  [[nodiscard]] double parameters(std::int64_t context) const;
};
std::span<const FlexspModel> flexsp_models();
// Null: no preset has this name.
const FlexspModel* flexsp_model(const std::string& name);

// All-to-all bandwidth by size of group on 64 x A100-40GB, eight a node, 400 Gb/s between.
inline constexpr const char* kFlexspCluster = "a100-40gb-8x8";
inline constexpr int kFlexspRanks = 64;
inline constexpr double kFlexspMemoryMb = 30 * 1024;  // of a rank, of 2^20 bytes
// v(d) in GB/s; infinite for one rank.  Beyond 64 ranks nine tenths for each doubling; sizes that
// are no power of two have what lies between their neighbours on a scale of logarithms, except
// beyond a node, where they have that of the next power of two.
double flexsp_all_to_all(int ranks);

// The problem as published: groups of 1, 2, 4, ... ranks.  Throws std::invalid_argument for fewer
// ranks than one, for states that leave no memory, and what check() throws.
struct FlexspSetting {
  const FlexspModel* model = nullptr;
  int ranks = kFlexspRanks;
  std::int64_t context = 192'000;
  double memory_mb = kFlexspMemoryMb;
};
GroupingTask flexsp_task(const FlexspSetting& setting, std::vector<std::int64_t> lengths);
// Tokens that find room on a rank.
std::int64_t flexsp_tokens_per_rank(const FlexspSetting& setting);

}  // namespace paradyse
