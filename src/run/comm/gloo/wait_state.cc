#include "src/run/comm/gloo/wait_state.h"

#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "src/plan/base/json_text.h"
#include "src/run/comm/rendezvous/printable.h"

namespace paradyse::gloo {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostState = 1 << 16;  // bytes: a rank's own are some hundred

[[noreturn]] void refuse_state(const std::string& text, int of, const std::string& why) {
  throw std::runtime_error(fmt::format(
      "rank {} is said to be in '{}', {}: another program writes there",
      of,
      rendezvous::printable(text, 200),
      why));
}

}  // namespace

std::string state_text(std::int64_t beat, const std::optional<Wait>& wait) {
  Json state;
  state["beat"] = beat;
  if (wait) {
    state["for"] = wait->rank;
    state["where"] = wait->where;
    state["what"] = wait->what;
  }
  return state.dump();
}

std::optional<Wait> wait_in(const std::string& text, int of, int size) {
  if (text.size() > kMostState) {
    refuse_state(text, of, fmt::format("which is {} bytes long", text.size()));
  }
  Json state;
  try {
    state = json_in(text);
  } catch (const Json::exception&) {
    refuse_state(text, of, "which is no JSON");
  }
  if (!state.is_object()) {
    refuse_state(text, of, "which is no object");
  }
  const auto rank = state.find("for");
  if (rank == state.end()) {
    return std::nullopt;
  }
  // An unsigned number may be larger than any signed one.
  const bool whole = rank->is_number_unsigned()
                         ? rank->get<std::uint64_t>() < static_cast<std::uint64_t>(size)
                         : rank->is_number_integer() && rank->get<std::int64_t>() >= 0 &&
                               rank->get<std::int64_t>() < size;
  if (!whole) {
    refuse_state(text, of, fmt::format("whose \"for\" is none of {} ranks", size));
  }
  const auto where = state.find("where");
  const auto what = state.find("what");
  if (where == state.end() || !where->is_string() || what == state.end() || !what->is_string()) {
    refuse_state(text, of, "whose \"where\" or \"what\" is no text");
  }
  return Wait{
      .rank = rank->get<int>(),
      .where = where->get<std::string>(),
      .what = what->get<std::string>()};
}

}  // namespace paradyse::gloo
