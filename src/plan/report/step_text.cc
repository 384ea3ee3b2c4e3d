// A plan as a reader on a terminal wants it: who runs what, and why so.
#include <algorithm>
#include <numeric>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/wrapped_text.h"
#include "src/plan/report/run_report.h"

namespace paradyse {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kMostGroups = 6;

std::string seconds_text(double seconds) {
  return decimals_text(seconds, seconds < 0.1 ? 3 : 2) + " s";
}

// "ranks 0-3", "rank 2", "ranks 0, 2"
std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) {
    return "rank " + std::to_string(ranks.front());
  }
  if (ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size())) {
    return "ranks " + std::to_string(ranks.front()) + "-" + std::to_string(ranks.back());
  }
  std::string text;
  for (const int rank : ranks) {
    text += (text.empty() ? "ranks " : ", ") + std::to_string(rank);
  }
  return text;
}

// At most so many bytes; no letter is cut in two.
std::string cut(const std::string& line) {
  if (line.size() <= kColumns) {
    return line;
  }
  std::size_t end = kColumns - 3;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0U) == 0x80U) {
    --end;
  }
  return line.substr(0, end) + "...";
}

// "3 documents, 400 tokens"
std::string items_text(const Plan& plan, std::size_t items, std::int64_t tokens) {
  const bool samples = has_samples(plan);
  return counted(static_cast<std::int64_t>(items), samples ? "sample" : "document") + ", " +
         counted(tokens, samples ? "row" : "token");
}

std::string group_text(const Plan& plan, std::size_t micro, const PlanGroup& group) {
  std::string text =
      "  micro-batch " + std::to_string(micro + 1) + ", " + ranks_text(group.ranks) + ": ";
  if (group.documents.empty()) {
    return text + "idle";
  }
  std::int64_t tokens = 0;
  for (const std::int64_t d : group.documents) {
    tokens += plan.lengths[idx(d)];
  }
  text += items_text(plan, group.documents.size(), tokens);
  if (group.predicted.seconds) {
    text += ", predicted " + seconds_text(*group.predicted.seconds);
  }
  return text + "; " + group.program;
}

// The numbers of the longest listed length that is not above `tokens`.
const GroupSize::Item* at_length(const GroupSize& size, std::int64_t tokens) {
  const GroupSize::Item* found = nullptr;
  for (const GroupSize::Item& one : size.by_length) {
    if (one.tokens <= tokens && (found == nullptr || one.tokens > found->tokens)) {
      found = &one;
    }
  }
  return found;
}

std::string size_text(int ranks) {
  return ranks == 1 ? "one rank" : "a group of " + std::to_string(ranks) + " ranks";
}

// Why a document of so many tokens, or a sample of so many rows, is on so many ranks; "": not
// known.
std::string reason(const ReportedRun& run, bool samples, std::int64_t tokens, int ranks) {
  const std::string what = samples ? "sample" : "document";
  const std::string rows = samples ? "rows" : "tokens";
  const GroupSize* mine = nullptr;
  const GroupSize* smaller = nullptr;  // the next size below
  const GroupSize* larger = nullptr;   // and above
  for (const GroupSize& size : run.sizes) {
    if (size.ranks == ranks) {
      mine = &size;
    } else if (size.ranks < ranks) {
      smaller = smaller == nullptr || size.ranks > smaller->ranks ? &size : smaller;
    } else {
      larger = larger == nullptr || size.ranks < larger->ranks ? &size : larger;
    }
  }
  const std::string item = "The " + what + " of " + std::to_string(tokens) + " " + rows + " ";
  if (smaller != nullptr && smaller->longest && tokens > *smaller->longest) {
    return item + "is on " + size_text(ranks) + ": " + size_text(smaller->ranks) +
           " holds at most " + std::to_string(*smaller->longest) + " tokens within " +
           bytes_text(run.memory_per_rank) + " a rank.";
  }
  const GroupSize* other = smaller != nullptr ? smaller : larger;
  const GroupSize::Item* here = mine == nullptr ? nullptr : at_length(*mine, tokens);
  const GroupSize::Item* there = other == nullptr ? nullptr : at_length(*other, tokens);
  if (here == nullptr || there == nullptr || !here->seconds || (there->fits && !there->seconds)) {
    return "";
  }
  const std::string priced =
      here->tokens == tokens
          ? "alone, it is predicted to take "
          : "a " + what + " of " + std::to_string(here->tokens) + " " + rows +
                " alone, the longest below that is priced, is predicted to take ";
  return item + "is on " + size_text(ranks) + ": " + priced + seconds_text(*here->seconds) +
         " there and " +
         (there->fits ? seconds_text(*there->seconds) + " on " + size_text(other->ranks)
                      : "not to fit " + size_text(other->ranks)) +
         (here->seconds <= there->seconds || !there->fits
              ? "."
              : ". The plan is made for the whole batch, by costs that measured steps may have "
                "corrected since.");
}

}  // namespace

std::string step_text(const ReportedRun& run, const ReportedStep& step, const Plan& plan) {
  const auto tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0});
  std::string text = "plan of step " + std::to_string(step.step) + " (planner " +
                     plan.planner_name + "): " + items_text(plan, plan.lengths.size(), tokens) +
                     "\n  predicted " + seconds_text(step.predicted_seconds) + ", took " +
                     seconds_text(step.seconds) + "; ranks were idle for " +
                     percent_text(step.idle) + " of it\n";
  std::size_t groups = 0;
  const PlanGroup* longest = nullptr;
  const PlanGroup* shortest = nullptr;
  const auto ends = [&](const PlanGroup& group, bool most) {
    std::int64_t end = 0;
    for (const std::int64_t d : group.documents) {
      const std::int64_t length = plan.lengths[idx(d)];
      end = end == 0 ? length : most ? std::max(end, length) : std::min(end, length);
    }
    return end;
  };
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    for (const PlanGroup& group : plan.micro_batches[m].groups) {
      if (++groups <= kMostGroups) {
        text += cut(group_text(plan, m, group)) + "\n";
      }
      if (group.documents.empty()) {
        continue;
      }
      longest = longest == nullptr || ends(group, true) > ends(*longest, true) ? &group : longest;
      shortest =
          shortest == nullptr || ends(group, false) < ends(*shortest, false) ? &group : shortest;
    }
  }
  if (groups > kMostGroups) {
    text +=
        "  and " + counted(static_cast<std::int64_t>(groups - kMostGroups), "more group") + "\n";
  }
  if (longest == nullptr || run.sizes.empty()) {
    return text;
  }
  const bool samples = has_samples(plan);
  std::string why =
      reason(run, samples, ends(*longest, true), static_cast<int>(longest->ranks.size()));
  if (shortest->ranks.size() != longest->ranks.size()) {
    const std::string also =
        reason(run, samples, ends(*shortest, false), static_cast<int>(shortest->ranks.size()));
    why += (why.empty() || also.empty() ? "" : " ") + also;
  }
  const std::string head = "  why: ";
  return why.empty()
             ? text
             : text + head +
                   wrapped_text(why, std::string(head.size(), ' '), kColumns).substr(head.size());
}

}  // namespace paradyse
