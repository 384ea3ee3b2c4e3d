#include "src/plan/program/bodies.h"

#include <map>

namespace paradyse {

std::vector<AlikeParts> bodies(const Timeline& timeline) {
  std::vector<AlikeParts> all;
  std::map<const ScheduledPart::Body*, std::size_t> places;
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    const ScheduledPart::Body* body = timeline[i].body.get();
    const auto [place, fresh] = places.try_emplace(body, all.size());
    if (fresh) {
      all.push_back({.body = body});
    }
    all[place->second].parts.push_back(i);
  }
  return all;
}

}  // namespace paradyse
