#include "src/plan/plan/check/findings.h"

#include <sstream>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"

namespace paradyse::check {

Findings::Findings(const Plan& checked, const CheckContext& against)
    : plan(checked), context(against), model(against.model) {}

void Findings::say(const std::string& path, const std::string& what) {
  problems.push_back(path + ": " + what);
}

bool Findings::known(const std::string& path, const std::function<void()>& look) {
  try {
    look();
    return true;
  } catch (const std::invalid_argument& error) {
    say(path, error.what());
    return false;
  }
}

bool Findings::document_exists(std::int64_t document) const {
  return document >= 0 && idx(document) < plan.lengths.size();
}

bool Findings::of_samples() const {
  return model ? model->of_samples() : layer_kinds(plan.model_name) != layer_kinds({});
}

std::string text(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

std::string text(Interval ranks) {
  return ranks.size() == 1 ? text(ranks.begin) : text(ranks.begin) + "-" + text(ranks.end - 1);
}

}  // namespace paradyse::check
