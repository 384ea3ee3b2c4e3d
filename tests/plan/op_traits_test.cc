// The table of op kinds answers for each of them, in its own words; nobody but its files asks which
// kind an op is.
#include "paradyse/plan/detail/op_traits.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace paradyse {
namespace {

using Meets = OpTraits::Meets;
using Shares = OpTraits::Shares;

std::vector<OpKind> kinds() {
  std::vector<OpKind> all;
  for (int i = 0; i < static_cast<int>(OpKind::count); ++i) {
    all.push_back(static_cast<OpKind>(i));
  }
  return all;
}

// Each has a name of its own; those of traces and logs stay.
TEST(OpTraits, NameEachKind) {
  std::set<std::string> names;
  for (const OpKind kind : kinds()) {
    ASSERT_NE(traits(kind).name, nullptr);
    EXPECT_TRUE(names.insert(to_string(kind)).second) << to_string(kind);
  }
  const std::pair<OpKind, std::string> stay[] = {
      {OpKind::embed, "embed"},
      {OpKind::norm, "norm"},
      {OpKind::hold_weights, "hold_weights"},
      {OpKind::gather_weights, "gather_weights"},
      {OpKind::linear, "linear"},
      {OpKind::bias, "bias"},
      {OpKind::qk_norm, "qk_norm"},
      {OpKind::rope, "rope"},
      {OpKind::redistribute, "redistribute"},
      {OpKind::attention, "attention"},
      {OpKind::ring_attention, "ring_attention"},
      {OpKind::score_attention, "score_attention"},
      {OpKind::swiglu, "swiglu"},
      {OpKind::activation, "activation"},
      {OpKind::dropout, "dropout"},
      {OpKind::add, "add"},
      {OpKind::cross_entropy, "cross_entropy"},
  };
  for (const auto& [kind, name] : stay) {
    EXPECT_EQ(to_string(kind), name);
  }
}

struct Named {
  OpKind kind;
};

TEST(OpTraits, ATableIsCompleteWithEveryKindInItsPlace) {
  constexpr auto count = static_cast<std::size_t>(OpKind::count);
  Named all[count];
  for (std::size_t i = 0; i < count; ++i) {
    all[i].kind = static_cast<OpKind>(i);
  }
  EXPECT_TRUE(complete(all));
  std::swap(all[1], all[2]);
  EXPECT_FALSE(complete(all));
  const Named first[] = {{.kind = static_cast<OpKind>(0)}};
  EXPECT_FALSE(complete(first));
}

// Whatever its shape: in place or not, with results or without.
TEST(OpTraits, AnAdjointNeedsOperandsAndResultsOnly) {
  for (const OpKind kind : kinds()) {
    for (const bool in_place : {false, true}) {
      for (const int results : {0, 1, 2}) {
        Op op{.kind = kind, .in = {3, 5, 8}, .in_place = in_place};
        for (int i = 0; i < results; ++i) {
          op.out.push_back(10 + i);
        }
        std::set<ValueId> known(op.in.begin(), op.in.end());
        known.insert(op.out.begin(), op.out.end());
        std::set<ValueId> needed;
        for (const ValueId value : traits(kind).needs(op)) {
          EXPECT_TRUE(known.contains(value)) << to_string(kind) << " needs " << value;
          EXPECT_TRUE(needed.insert(value).second) << to_string(kind) << " needs it twice";
        }
        // It could not be saved: out[0] has its memory.
        if (in_place && traits(kind).shares != Shares::nothing) {
          EXPECT_FALSE(needed.contains(op.in.back())) << to_string(kind);
        }
      }
    }
  }
}

TEST(OpTraits, FitTogether) {
  for (const OpKind kind : kinds()) {
    SCOPED_TRACE(to_string(kind));
    const OpTraits& row = traits(kind);
    const bool sends = row.exchanges != sends_nothing;
    EXPECT_EQ(sends, row.meets != Meets::nobody);
    EXPECT_TRUE(!row.only_moves || sends);
    EXPECT_TRUE(!row.receives_first || sends);
    EXPECT_TRUE(row.rings == 0 || row.meets == Meets::group) << "a ring is of a group";
    EXPECT_TRUE(!row.prefetched || (row.weights && row.receives_first && row.only_moves));
    EXPECT_FALSE(row.light && (sends || row.core || row.products)) << "it costs to make again";
    EXPECT_FALSE(row.core && row.products);
  }
}

// `apart` keeps the gradient of the operand that is not taken over in memory of its own.
TEST(OpTraits, GradientsAreSharedInPlaceOnly) {
  for (const OpKind kind : kinds()) {
    SCOPED_TRACE(to_string(kind));
    Op op{.kind = kind, .in = {0, 1}, .out = {2}};
    EXPECT_FALSE(shares_gradient(op, 0));
    EXPECT_FALSE(shares_gradient(op, 1));
    op.in_place = true;
    EXPECT_EQ(shares_gradient(op, 0), traits(kind).shares == Shares::all);
    EXPECT_EQ(shares_gradient(op, 1), traits(kind).shares != Shares::nothing);
    op.apart = true;
    EXPECT_FALSE(shares_gradient(op, 0));
    EXPECT_EQ(shares_gradient(op, 1), traits(kind).shares != Shares::nothing);
  }
}

// Adding a kind is adding rows: apart from the files of the kinds and the verbs that write ops, no
// source names one.
TEST(OpTraits, NobodyElseAsksForAKind) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(PARADYSE_SOURCE_DIR) / "src";
  std::size_t read = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const fs::path path = entry.path().lexically_relative(root);
    const std::string folder = path.parent_path().generic_string();
    if (!entry.is_regular_file() || folder == "plan/ops" || path == "run/ops/table.cc" ||
        path == "plan/strategy/writer.cc") {
      continue;
    }
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      EXPECT_EQ(line.find("OpKind::"), std::string::npos) << path << ": " << line;
    }
    ++read;
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace paradyse
