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

#include "src/plan/search/grouping/space.h"

namespace paradyse {

struct FlexspModel {
  const char* name = "";       // "flexsp-7b"
  double activation_mb = 0;    // a token, of 2^20 bytes
  double a1_ms = 0;            // a token squared
  double a2_ms = 0;            // a token
  double b1_ms = 0;            // a micro-batch: ZeRO-3's traffic
  double parameters_192k = 0;  // of 2^30, with learned positions for contexts of 192 thousand
  double parameters_384k = 0;
  int layers = 0;  // L
  int hidden = 0;  // h

  // Of 2^30, for a context of so many tokens.
  [[nodiscard]] double parameters(std::int64_t context) const;
};
std::span<const FlexspModel> flexsp_models();
// Null: no preset has this name.
const FlexspModel* flexsp_model(const std::string& name);

// All-to-all bandwidth by size of group on 64 x A100-40GB, eight a node, 400 Gb/s between.
inline constexpr const char* kFlexspCluster = "a100-40gb-8x8";
inline constexpr int kFlexspRanks = 64;
inline constexpr int kFlexspNode = 8;
inline constexpr double kFlexspMemoryMb = 30 * 1024;  // of a rank, of 2^20 bytes
// v(d) in GB/s; infinite for one rank.  Beyond 64 ranks nine tenths for each doubling; sizes that
// are no power of two have what lies between their neighbours on a scale of logarithms, except
// beyond a node, where they have that of the next power of two.
double flexsp_all_to_all(int ranks);

struct FlexspSetting {
  const FlexspModel* model = nullptr;
  int ranks = kFlexspRanks;
  std::int64_t context = 192'000;
  double memory_mb = kFlexspMemoryMb;
};
// Tokens that find room on a rank.
std::int64_t flexsp_tokens_per_rank(const FlexspSetting& setting);
// The problem as published: groups of 1, 2, 4, ... ranks.  Throws std::invalid_argument for fewer
// ranks than one, for states that leave no memory, and what check() throws.
GroupingTask flexsp_task(const FlexspSetting& setting, std::vector<std::int64_t> lengths);

// The same cost model in a larger space.  Groups have any size up to a node and whole nodes beyond;
// each has an attention core and a level of recompute.  What is not in the publication, assumed
// until it is measured:
//   - levels: all but the attention output a1 x 1.0, a2 x 1.19, all-to-all x 1.375, 1.3 MB a token
//   of
//     the 7B model; full a1 and a2 x 1.33, all-to-all x 1.5, 1.0 MB
//   - Ulysses on a size that is no power of two waits for the rank with most heads of 128 columns
//   - ring: 12 L h s (d - 1) / d bytes of keys and values and their gradients pass every rank, at
//     v(2) inside a node and 44 GB/s across its border (what v(16) leaves there)
//   - Ulysses inside nodes, a ring across r of them: an eighth of 12 L h s (r - 1) / r, at an
//   eighth
//     of those 44 GB/s, and the all-to-all of v(8)
//   - with overlap the ring hides behind attention (a1), and b1 behind the slowest group
//   - weights cut over a node: 16 bytes a parameter over its 8 ranks, b1 as at v(2), groups inside
//     nodes; once a batch gradients are summed over nodes, 4 bytes a parameter at 44 GB/s a node
struct FlexspFull {
  bool overlapped = false;
  bool node_domain = false;
};

// What planners plan: types with the programs that they run.  Throw std::invalid_argument as
// flexsp_task() does, and for ranks that are no whole nodes where weights are cut over each.
GroupSpace flexsp_space(const FlexspSetting& setting, std::vector<std::int64_t> lengths);
GroupSpace flexsp_full_space(
    const FlexspSetting& setting, const FlexspFull& options, std::vector<std::int64_t> lengths);

}  // namespace paradyse
