// All that a corpus has, at once.
#pragma once

#include <string>
#include <vector>

#include "paradyse/run/data.h"

namespace paradyse {

inline std::vector<Tokens> documents_of(const Corpus& corpus) {
  std::vector<Tokens> all;
  for (std::int64_t d = 0; d < corpus.size(); ++d) {
    all.push_back(corpus.document(d).tokens);
  }
  return all;
}

// None where no document has any.
inline std::vector<Tokens> labels_of(const Corpus& corpus) {
  std::vector<Tokens> all;
  for (std::int64_t d = 0; corpus.labelled() && d < corpus.size(); ++d) {
    all.push_back(corpus.document(d).labels.value());
  }
  return all;
}

inline std::vector<std::string> names_of(const Corpus& corpus) {
  std::vector<std::string> all;
  for (std::int64_t d = 0; d < corpus.size(); ++d) {
    all.push_back(corpus.name(d));
  }
  return all;
}

}  // namespace paradyse
