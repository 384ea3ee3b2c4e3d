#include "src/plan/search/grouping/fast/polish.h"

#include <algorithm>

namespace paradyse::fast {
namespace {

constexpr int kMostRounds = 200;
constexpr double kFaster = 1e-6;  // of the slowest group

struct Group {
  int type = 0;
  double seconds = 0;
  double tokens = 0;
};

// The item at `place` goes to `group`; the one at `back`, if any, takes its place.
struct Change {
  std::size_t place = 0;
  int group = 0;
  std::ptrdiff_t back = -1;
  double slower = 0;  // of both groups afterwards
};

class Polish {
 public:
  Polish(const Items& items, Packed& packed) : items_(items), packed_(packed) {
    for (const int type : packed.types) {
      groups_.push_back(
          {.type = type, .seconds = items.task().types[idx(type)].fixed_seconds, .tokens = 0});
    }
    for (std::size_t place = 0; place < packed.items.size(); ++place) {
      add(groups_[idx(packed.groups[place])], packed.items[place], 1);
    }
  }

  void run() {
    for (int round = 0; round < kMostRounds && improved(); ++round) {
    }
    packed_.slowest = groups_[slowest()].seconds;
  }

 private:
  void add(Group& group, int item, int times) const {
    group.seconds += times * items_.seconds(group.type, item);
    group.tokens += times * items_.tokens(item);
  }
  [[nodiscard]] std::size_t slowest() const {
    const auto most = std::ranges::max_element(groups_, {}, &Group::seconds);
    return static_cast<std::size_t>(most - groups_.begin());
  }
  [[nodiscard]] bool fits(const Group& group) const {
    return group.tokens <= static_cast<double>(items_.task().types[idx(group.type)].capacity);
  }

  bool improved() {
    const std::size_t slow = slowest();
    Change best{.slower = groups_[slow].seconds * (1 - kFaster)};
    bool found = false;
    const auto consider = [&](std::size_t place, std::size_t other, std::ptrdiff_t back) {
      Group from = groups_[slow];
      Group to = groups_[other];
      add(from, packed_.items[place], -1);
      add(to, packed_.items[place], 1);
      if (back >= 0) {
        add(from, packed_.items[idx(back)], 1);
        add(to, packed_.items[idx(back)], -1);
      }
      const double slower = std::max(from.seconds, to.seconds);
      if (slower < best.slower && fits(from) && fits(to)) {
        best = {.place = place, .group = static_cast<int>(other), .back = back, .slower = slower};
        found = true;
      }
    };
    std::vector<std::size_t> mine;
    for (std::size_t place = 0; place < packed_.items.size(); ++place) {
      if (idx(packed_.groups[place]) == slow) {
        mine.push_back(place);
      }
    }
    for (const std::size_t place : mine) {
      for (std::size_t other = 0; other < groups_.size() && mine.size() > 1; ++other) {
        if (other != slow) {
          consider(place, other, -1);
        }
      }
    }
    for (const std::size_t place : mine) {
      for (std::size_t back = 0; back < packed_.items.size() && !found; ++back) {
        // a longer one that comes back helps nothing
        if (idx(packed_.groups[back]) != slow && packed_.items[back] > packed_.items[place]) {
          consider(place, idx(packed_.groups[back]), static_cast<std::ptrdiff_t>(back));
        }
      }
    }
    if (found) {
      apply(best, slow);
    }
    return found;
  }

  void apply(const Change& change, std::size_t slow) {
    const auto put = [&](std::size_t place, std::size_t from, std::size_t to) {
      add(groups_[from], packed_.items[place], -1);
      add(groups_[to], packed_.items[place], 1);
      packed_.groups[place] = static_cast<int>(to);
    };
    put(change.place, slow, idx(change.group));
    if (change.back >= 0) {
      put(idx(change.back), idx(change.group), slow);
    }
  }

  const Items& items_;
  Packed& packed_;
  std::vector<Group> groups_;
};

}  // namespace

void polish(const Items& items, Packed& packed) {
  if (!packed.types.empty()) {
    Polish(items, packed).run();
  }
}

}  // namespace paradyse::fast
