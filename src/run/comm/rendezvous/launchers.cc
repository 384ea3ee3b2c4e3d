#include "src/run/comm/rendezvous/launchers.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/run/comm/rendezvous/printable.h"

namespace paradyse::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{50};

std::string came_key(int attempt, int node) {
  return fmt::format("launchers/{}/{}", attempt, node);
}
std::string word_key(int attempt) { return fmt::format("launchers/{}", attempt); }

// "0 2 3", some of `before`.
std::vector<int> nodes_in(const std::string& text, const std::vector<int>& before) {
  std::vector<int> nodes;
  std::string_view rest = text;
  while (!rest.empty()) {
    int node = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), node);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    const bool known = error == std::errc{} && std::ranges::binary_search(before, node) &&
                       (nodes.empty() || nodes.back() < node);
    if (!known || (!rest.empty() && rest.front() != ' ')) {
      throw std::runtime_error(fmt::format(
          "the nodes that go on are said to be '{}', of {}: another program writes there",
          printable(text, 200),
          fmt::join(before, " ")));
    }
    nodes.push_back(node);
    rest.remove_prefix(rest.empty() ? 0 : 1);
  }
  return nodes;
}

}  // namespace

std::optional<std::vector<int>> nodes_that_go_on(
    Store& store, const LauncherMeeting& meeting, const std::function<bool()>& stop) {
  const bool says = meeting.node == 0;
  const auto end = Clock::now() + (says ? 1 : 2) * meeting.patience;
  store.set(came_key(meeting.attempt, meeting.node), "");
  while (!stop()) {
    if (says) {
      std::vector<int> there;
      std::ranges::copy_if(meeting.before, std::back_inserter(there), [&](int node) {
        return store.get(came_key(meeting.attempt, node)).has_value();
      });
      if (there.size() == meeting.before.size() || Clock::now() > end) {
        store.set(word_key(meeting.attempt), fmt::format("{}", fmt::join(there, " ")));
        return there;
      }
    } else if (const auto word = store.get(word_key(meeting.attempt))) {
      return nodes_in(*word, meeting.before);
    } else if (Clock::now() > end) {
      throw std::runtime_error("node 0 did not say which nodes go on");
    }
    std::this_thread::sleep_for(kLook);
  }
  return std::nullopt;
}

}  // namespace paradyse::rendezvous
