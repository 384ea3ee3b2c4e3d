#include "paradyse/plan/detail/index.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/plan/check/findings.h"

namespace paradyse::check {

void check_documents(Findings& findings) {
  if (findings.plan.lengths.empty()) {
    findings.say(
        "lengths",
        "no documents: a step of this plan trains on nothing; plan a batch of at least one");
  }
  std::vector<std::string> places(findings.plan.lengths.size());
  for (std::size_t m = 0; m < findings.plan.micro_batches.size(); ++m) {
    const std::string micro_batch = path_to("micro_batches", m);
    for (std::size_t g = 0; g < findings.plan.micro_batches[m].groups.size(); ++g) {
      const auto& documents = findings.plan.micro_batches[m].groups[g].documents;
      for (std::size_t i = 0; i < documents.size(); ++i) {
        const std::string here = path_to(path_to(micro_batch + ".groups", g) + ".documents", i);
        if (!findings.document_exists(documents[i])) {
          findings.say(
              here,
              "document " + text(documents[i]) + " does not exist: there are " +
                  text(findings.plan.lengths.size()) + ", counted from 0");
          continue;
        }
        std::string& place = places[idx(documents[i])];
        if (!place.empty()) {
          findings.say(
              here,
              "document " + text(documents[i]) + " is already at " + place +
                  ": each document is in exactly one group");
        } else {
          place = here;
        }
      }
    }
  }
  const std::size_t sources = findings.plan.source.size();
  if (sources != 0 && sources != places.size()) {
    findings.say(
        "source",
        text(sources) + " lines for " + text(places.size()) +
            " documents: give each document's line of its file, or leave the key out");
  }
  for (std::size_t d = 0; d < places.size(); ++d) {
    if (places[d].empty()) {
      findings.say(
          path_to("lengths", d),
          "document " + text(d) + " is in no group: each document is in exactly one");
    }
  }
}

}  // namespace paradyse::check
