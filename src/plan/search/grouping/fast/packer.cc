#include "src/plan/search/grouping/fast/packer.h"

#include <algorithm>

namespace paradyse::fast {
namespace {

// Of seconds: halving ends when bound and plan are so near.
constexpr double kNear = 1e-3;

}  // namespace

Packer::Packer(const Items& items) : items_(items), open_(items.sizes().size()) {
  const GroupingTask& task = items.task();
  rooms_.emplace_back(task.ranks, task.node);
  for (const int ranks : task.pools) {
    rooms_.emplace_back(ranks, task.node);
  }
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

// A new group of the first size in which the item is done in time; -1: there are no ranks for one.
// Its type is settled when all is packed.
int Packer::into_new(int item, double seconds, Packed& packed, std::size_t& size) {
  const std::vector<Items::Size>& sizes = items_.sizes();
  size = std::max(least_, items_.smallest(item, sizes_));
  for (; size < sizes_.last && sizes[size].ranks <= free_; ++size) {
    if (items_.alone(size, item) > seconds ||
        !rooms_[idx(sizes[size].pool + 1)].take(sizes[size].ranks)) {
      continue;
    }
    free_ -= sizes[size].ranks;
    const std::vector<int>& types = sizes[size].types;
    packed.types.push_back(static_cast<int>(size));
    tokens_.push_back(0);
    next_.push_back(-1);
    for (std::size_t way = 0; way < items_.ways(); ++way) {
      seconds_left_.push_back(
          way < types.size() ? seconds - items_.task().types[idx(types[way])].fixed_seconds : 0);
    }
    return static_cast<int>(packed.types.size()) - 1;
  }
  return -1;
}

// A group that is open and takes the item; -1: there is none.
int Packer::into_open(int item, bool even, std::size_t& size) {
  for (size = std::max(least_, items_.smallest(item, sizes_)); size < sizes_.last; ++size) {
    const KeySet& keys = open_[size].keys;
    const int key = even ? keys.first() : keys.last_at_most(item);
    if (key >= 0 && key <= item) {
      return take(size, key);
    }
  }
  return -1;
}

// Then the group is open under its key, if anything in `rest` could still go into it.
void Packer::add(int item, int group, std::size_t size) {
  const std::vector<int>& types = items_.sizes()[size].types;
  double* left = &seconds_left_[idx(group) * items_.ways()];
  const double tokens = tokens_[idx(group)] += items_.tokens(item);
  int key = items_.size();
  for (std::size_t way = 0; way < types.size(); ++way) {
    left[way] -= items_.seconds(types[way], item);
    const auto capacity = static_cast<double>(items_.task().types[idx(types[way])].capacity);
    if (left[way] > 0 && tokens < capacity) {
      key = std::min(key, items_.first_within(types[way], left[way], capacity - tokens));
    }
  }
  if (key > last_) {
    return;
  }
  Open& open = open_[size];
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
int Packer::take(std::size_t size, int key) {
  Open& open = open_[size];
  const int group = open.groups[idx(key)];
  open.groups[idx(key)] = next_[idx(group)];
  if (next_[idx(group)] < 0) {
    open.keys.erase(key);
  }
  --still_open_;
  return group;
}

// Sizes become types, of each group the fastest with room.
void Packer::settle(double seconds, Packed& packed) {
  double least = seconds;  // left
  for (std::size_t g = 0; g < packed.types.size(); ++g) {
    const double* left = &seconds_left_[g * items_.ways()];
    const std::vector<int>& types = items_.sizes()[idx(packed.types[g])].types;
    double most = -kNever;
    for (std::size_t way = 0; way < types.size(); ++way) {
      if (left[way] > most &&
          tokens_[g] <= static_cast<double>(items_.task().types[idx(types[way])].capacity)) {
        most = left[way];
        packed.types[g] = types[way];
      }
    }
    least = std::min(least, most);
  }
  packed.slowest = seconds - least;
}

void Packer::pack(
    double seconds,
    const Rule& rule,
    const std::vector<int>& rest,
    Packed& packed,
    std::vector<int>& left) {
  packed.types.clear();
  packed.items.clear();
  packed.groups.clear();
  left.clear();
  packed.slowest = 0;
  packed.rule = rule;
  if (rest.empty()) {
    return;
  }
  for (Open& open : open_) {
    open.keys.clear();
  }
  seconds_left_.clear();
  tokens_.clear();
  next_.clear();
  for (Room& room : rooms_) {
    room.reset();
  }
  sizes_ = items_.sizes_for(rest.front());
  least_ = sizes_.first + rule.least;
  free_ = items_.task().ranks;
  last_ = rest.back();
  still_open_ = 0;
  const int least_ranks =
      least_ < sizes_.last ? items_.sizes()[least_].ranks : items_.task().ranks + 1;
  std::size_t at = 0;
  for (; at < rest.size(); ++at) {
    const int item = rest[at];
    std::size_t size = 0;
    int group = rule.even ? into_new(item, seconds, packed, size) : into_open(item, false, size);
    if (group < 0) {
      group = rule.even ? into_open(item, true, size) : into_new(item, seconds, packed, size);
    }
    if (group >= 0) {
      packed.items.push_back(item);
      packed.groups.push_back(group);
      add(item, group, size);
    } else if (still_open_ == 0 && free_ < least_ranks) {
      break;  // full
    } else {
      left.push_back(item);
    }
  }
  work_ += static_cast<std::int64_t>(at) + 1;
  left.insert(left.end(), rest.begin() + static_cast<std::ptrdiff_t>(at), rest.end());
  settle(seconds, packed);
}

bool Packer::solve(
    const std::vector<int>& rest, const Rule& rule, Packed& packed, double upper, int halvings) {
  double low = least_seconds(rest);
  double high = upper;
  bool found = false;
  const auto fits = [&](double seconds) {
    pack(seconds, rule, rest, trial_, left_);
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
