#include "src/plan/profile/header_json.h"

#include <algorithm>
#include <cstdint>

#include "src/plan/base/text_match.h"

namespace paradyse {

namespace {

// Calls visit(name, member pointer) for every field, in the order of the file.
template <typename Visit>
void for_fields(const Visit& visit) {
  visit("machine", &ProfileHeader::machine);
  visit("machine_sha256", &ProfileHeader::machine_sha256);
  visit("model", &ProfileHeader::model);
  visit("model_sha256", &ProfileHeader::model_sha256);
  visit("hidden", &ProfileHeader::hidden);
  visit("layers", &ProfileHeader::layers);
  visit("ranks", &ProfileHeader::ranks);
  visit("ranks_per_node", &ProfileHeader::ranks_per_node);
  visit("cores", &ProfileHeader::cores);
  visit("backend", &ProfileHeader::backend);
  visit("device", &ProfileHeader::device);
  visit("dtype", &ProfileHeader::dtype);
}

void read(const JsonNode& node, std::string& into) { into = node.text(); }
void read(const JsonNode& node, Dtype& into) {
  const std::string name = node.text();
  const std::vector<std::string> known = dtype_names();
  if (std::ranges::find(known, name) == known.end()) {
    node.fail("'" + name + "' is no dtype" + did_you_mean(name, known));
  }
  into = dtype_named(name);
}
void read(const JsonNode& node, std::int64_t& into) { into = node.integer<std::int64_t>(0); }
void read(const JsonNode& node, int& into) { into = node.integer<int>(1); }

std::string text_of(const std::string& text) { return "\"" + text + "\""; }
std::string text_of(Dtype dtype) { return text_of(std::string(to_string(dtype))); }
std::string text_of(std::int64_t number) { return std::to_string(number); }

void put(nlohmann::ordered_json& into, Dtype dtype) { into = to_string(dtype); }
template <typename Value>
void put(nlohmann::ordered_json& into, const Value& value) {
  into = value;
}

}  // namespace

nlohmann::ordered_json json_of(const ProfileHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for_fields([&](const char* name, auto field) { put(json[name], header.*field); });
  return json;
}

ProfileHeader header_from(const JsonNode& node, const std::vector<std::string>& others) {
  std::vector<std::string> keys = others;
  for_fields([&](const char* name, auto /*field*/) { keys.emplace_back(name); });
  node.allow(keys);
  ProfileHeader header;
  for_fields([&](const char* name, auto field) { read(node.at(name), header.*field); });
  return header;
}

std::optional<HeaderDifference> first_difference(
    const ProfileHeader& there, const ProfileHeader& here) {
  std::optional<HeaderDifference> difference;
  for_fields([&](const char* name, auto field) {
    if (!difference && there.*field != here.*field) {
      difference = {.field = name, .there = text_of(there.*field), .here = text_of(here.*field)};
    }
  });
  return difference;
}

std::string difference_of(const ProfileHeader& there, const ProfileHeader& here) {
  const std::optional<HeaderDifference> found = first_difference(there, here);
  return found ? "'" + found->field + "' is " + found->there + " there and " + found->here + " here"
               : "";
}

}  // namespace paradyse
