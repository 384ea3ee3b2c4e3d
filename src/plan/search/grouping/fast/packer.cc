#include "src/plan/search/grouping/fast/packer.h"

#include <algorithm>

namespace paradyse::fast {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Of seconds: halving ends when bound and plan are so near.
constexpr double kNear = 1e-3;

}  // namespace

Packer::Packer(const Items& items)
    : items_(items), room_(items.task().ranks, items.task().node), open_(idx(items.types())) {
  for (Open& open : open_) {
    open.keys.reset(items.size());
    open.groups.resize(idx(items.size()));
  }
}

double Packer::area(const std::vector<int>& items) const {
  double sum = 0;
  for (const int item : items) {
    sum += items_.area(item);
  }
  return sum;
}

double Packer::tokens(const std::vector<int>& items) const {
  double sum = 0;
  for (const int item : items) {
    sum += items_.tokens(item);
  }
  return sum;
}

double Packer::least_seconds(const std::vector<int>& items) const {
  return items.empty() ? 0
                       : std::max(area(items) / items_.task().ranks, items_.fastest(items.front()));
}

// Under its key, if anything in `rest` could still go into it.
void Packer::put(int group, int type) {
  const int key =
      items_.first_within(type, seconds_left_[idx(group)], tokens_left_[idx(group)]);
  if (key > last_) {
    return;
  }
  Open& open = open_[idx(type)];
  if (open.keys.last_at_most(key) != key) {
    open.keys.insert(key);
    next_[idx(group)] = -1;
  } else {
    next_[idx(group)] = open.groups[idx(key)];
  }
  open.groups[idx(key)] = group;
  ++still_open_;
}

// A group with this key, which is open no more.
int Packer::take(int type, int key) {
  Open& open = open_[idx(type)];
  const int group = open.groups[idx(key)];
  open.groups[idx(key)] = next_[idx(group)];
  if (next_[idx(group)] < 0) {
    open.keys.erase(key);
  }
  --still_open_;
  return group;
}

void Packer::pack(
    double seconds, const std::vector<int>& rest, Packed& packed, std::vector<int>& left) {
  const GroupingTask& task = items_.task();
  packed.types.clear();
  packed.items.clear();
  packed.groups.clear();
  left.clear();
  packed.slowest = 0;
  if (rest.empty()) {
    return;
  }
  for (Open& open : open_) {
    open.keys.clear();
  }
  seconds_left_.clear();
  tokens_left_.clear();
  next_.clear();
  last_ = rest.back();
  still_open_ = 0;
  room_.reset();
  const int types = items_.types();
  std::size_t at = 0;
  for (; at < rest.size(); ++at) {
    const int item = rest[at];
    const double tokens = items_.tokens(item);
    const int smallest = items_.smallest(item);
    int group = -1;
    int type = smallest;
    for (; type < types; ++type) {
      if (const int key = open_[idx(type)].keys.last_at_most(item); key >= 0) {
        group = take(type, key);
        break;
      }
    }
    if (group < 0) {
      for (type = smallest; type < types; ++type) {
        const GroupType& tried = task.types[idx(type)];
        if (tried.ranks > room_.free()) {
          break;
        }
        if (items_.seconds(type, item) + tried.fixed_seconds <= seconds &&
            tokens <= static_cast<double>(tried.capacity) && room_.take(tried.ranks)) {
          group = static_cast<int>(packed.types.size());
          packed.types.push_back(type);
          seconds_left_.push_back(seconds - tried.fixed_seconds);
          tokens_left_.push_back(static_cast<double>(tried.capacity));
          next_.push_back(-1);
          break;
        }
      }
    }
    if (group >= 0) {
      packed.items.push_back(item);
      packed.groups.push_back(group);
      seconds_left_[idx(group)] -= items_.seconds(type, item);
      tokens_left_[idx(group)] -= tokens;
      put(group, type);
    } else if (still_open_ == 0 && room_.free() < task.types.front().ranks) {
      break;  // full
    } else {
      left.push_back(item);
    }
  }
  work_ += static_cast<std::int64_t>(at) + 1;
  left.insert(left.end(), rest.begin() + static_cast<std::ptrdiff_t>(at), rest.end());
  packed.slowest = seconds - *std::ranges::min_element(seconds_left_);
}

bool Packer::solve(
    const std::vector<int>& rest, Packed& packed, double upper, int halvings) {
  double low = least_seconds(rest);
  double high = upper;
  bool found = false;
  const auto fits = [&](double seconds) {
    pack(seconds, rest, trial_, left_);
    if (!left_.empty()) {
      return false;
    }
    std::swap(packed, trial_);
    high = packed.slowest;
    return found = true;
  };
  if (high == kNever) {
    double seconds = low * 1.05;
    constexpr int kGrown = 12;
    for (int i = 0; i < kGrown && !fits(seconds); ++i) {
      low = seconds;
      seconds *= 1.25;
    }
    if (!found) {
      return false;
    }
  }
  for (int i = 0; i < halvings && high - low > kNear * high; ++i) {
    // the bound is near more often than not
    const double middle = low + (high - low) * (i < 2 ? 0.35 : 0.5);
    if (!fits(middle)) {
      low = middle;
    }
  }
  return found;
}

}  // namespace paradyse::fast
