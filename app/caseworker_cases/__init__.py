"""The case agent, its tools, its built-in planner, and the evaluation of cases on a data set."""
