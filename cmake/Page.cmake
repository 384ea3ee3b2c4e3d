# The page of `paradyse report` as C++: page.html with page.css and page.js in it.
# cmake -D FOLDER=src/plan/report/page -D OUT=page_template.cc -P Page.cmake
file(READ ${FOLDER}/page.html page)
foreach(name page.css page.js)
  file(READ ${FOLDER}/${name} text)
  string(REPLACE "/*@${name}@*/" "${text}" page "${page}")
endforeach()
file(WRITE ${OUT} "namespace paradyse {
extern const char* const kPageTemplate;
const char* const kPageTemplate = R\"page(${page})page\";
}  // namespace paradyse
")
