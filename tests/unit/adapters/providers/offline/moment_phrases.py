"""Questions about times of a day, weeks and counts; asked on January 15, 2025, at 12:00 UTC.

The answers were worked out by hand: from the hours that places lie apart on that day, and from a
printed calendar.
"""

TIMES = [
    # Berlin is an hour ahead of UTC in winter and two in summer; Tokyo nine, Kolkata 5:30.
    (
        "What time is it in Tokyo when it is 3 pm in Berlin on 3 March 2025?",
        "Monday, March 3, 2025, 23:00 (Asia/Tokyo, UTC+09:00)",
    ),
    (
        "When it is 15:00 in London on 2025-07-01, what time is it in New York?",
        "Tuesday, July 1, 2025, 10:00 (America/New_York, UTC-04:00)",
    ),
    (
        "If it's 9 a.m. in Los Angeles on 1 July 2024, what time is it in Kolkata?",
        "Monday, July 1, 2024, 21:30 (Asia/Kolkata, UTC+05:30)",
    ),
    (
        "Convert 2025-03-03 15:00 from Berlin to Tokyo",
        "Monday, March 3, 2025, 23:00 (Asia/Tokyo, UTC+09:00)",
    ),
    (
        "convert 2025-03-03T15:00 from Europe/Berlin to Asia/Tokyo.",
        "Monday, March 3, 2025, 23:00 (Asia/Tokyo, UTC+09:00)",
    ),
    (
        "Convert noon on 3 March 2025 UTC to New York time",
        "Monday, March 3, 2025, 07:00 (America/New_York, UTC-05:00)",
    ),
    (
        "What is 2025-03-03T15:00:00Z in Sao Paulo?",
        "Monday, March 3, 2025, 12:00 (America/Sao_Paulo, UTC-03:00)",
    ),
    (
        "What is 3:30 p.m. on March 3, 2025 in Berlin in Los Angeles time?",
        "Monday, March 3, 2025, 06:30 (America/Los_Angeles, UTC-08:00)",
    ),
    (
        "What time was it in UTC at 9 pm Sydney time on 4 July 2024?",
        "Thursday, July 4, 2024, 11:00 (UTC)",
    ),
    ("What time is it?", "Wednesday, January 15, 2025, 12:00 (UTC)"),
    (
        "what time is it in Tokyo right now?",
        "Wednesday, January 15, 2025, 21:00 (Asia/Tokyo, UTC+09:00)",
    ),
    (
        "What's the current time in Ho Chi Minh?",
        "Wednesday, January 15, 2025, 19:00 (Asia/Ho_Chi_Minh, UTC+07:00)",
    ),
    ("What is the date in Tokyo?", "Wednesday, January 15, 2025"),
    (
        "What time is it 36 hours after 3 pm on 3 March 2025?",
        "Wednesday, March 5, 2025, 03:00 (UTC)",
    ),
    (
        "What is 2 hours and 30 minutes before 2025-03-01 00:30?",
        "Friday, February 28, 2025, 22:00 (UTC)",
    ),
    (
        "What time is it an hour after 2025-03-30 01:30 in Berlin?",
        "Sunday, March 30, 2025, 03:30 (Europe/Berlin, UTC+02:00)",
    ),
]

ELAPSED = [
    ("How many hours are there between 2025-03-01 10:00 and 2025-03-02 12:30?", "26.5"),
    ("How many hours between 2025-03-01T10:00 and 2025-03-02T12:30?", "26.5"),
    ("How many hours are there between 2025-03-29 12:00 and 2025-03-30 12:00 in Berlin?", "23"),
    ("How many hours are there between 2025-03-29 12:00 and 2025-03-30 12:00?", "24"),
    ("How many minutes are there from 9 am to 5:30 pm on 3 March 2025?", "510"),
    ("How many minutes from 11 pm on 3 March 2025 to 1 am on 4 March 2025?", "120"),
    ("How many seconds are there between 2025-01-01 00:00 and 2025-01-02 00:00?", "86400"),
    ("How long is it from 2025-03-01 10:00 to 2025-03-02 12:30?", "1 day, 2 hours and 30 minutes"),
    ("How long is it from 10:00 in Berlin to 13:00 in New York on 3 March 2025?", "9 hours"),
    ("If today is 2025-03-01, how many hours is it from today 10:00 to 2025-03-02 12:00?", "26"),
    ("How many hours are there between 3 pm and 5 pm?", "2"),
    ("How many minutes are there between 9:20 a.m. and 11:05 a.m.?", "105"),
]

FACTS = [
    ("Which ISO week is 2021-01-03 in?", "53"),
    ("What ISO week does July 4, 2024 fall in?", "27"),
    ("What is the ISO week number of 2024-12-30?", "1"),
    ("What ISO week is it?", "3"),
    ("If today is 2025-03-01, what ISO week is it?", "9"),
    ("What day of the year is March 1, 2024?", "61"),
    ("Which day of the year was 31 December 2023?", "365"),
    ("the day of the year of 2023-02-01", "32"),
    ("What quarter is 2024-05-17 in?", "2"),
    ("In which quarter does November 2, 2024 fall?", "4"),
    ("Which quarter are we in?", "1"),
    # May 2024 began on a Wednesday and ended on a Friday.
    ("How many Mondays are there in May 2024?", "4"),
    ("How many Fridays were there in May 2024?", "5"),
    ("How many Sundays does 2023 have?", "53"),
    ("number of Tuesdays in 2023", "52"),
    ("How many Saturdays were there in Q1 2024?", "13"),
    ("How many business days are there in May 2024?", "23"),
    ("How many weekdays are there in February 2025?", "20"),
    ("How many Mondays are there between 2024-05-07 and 2024-05-31?", "3"),
    ("How many Mondays are there between 2024-05-06 and 2024-05-31, both included?", "4"),
    ("How many working days are there from 2024-05-06 through 2024-05-31?", "20"),
    ("How many business days are there between 2024-05-04 and 2024-05-12?", "5"),
    ("Which came first, July 20, 1969 or November 9, 1989?", "Sunday, July 20, 1969"),
    ("Which is later: 2024-02-29 or March 1, 2024?", "Friday, March 1, 2024"),
    ("Which of 2024-02-29 and 2024-03-01 is earlier?", "Thursday, February 29, 2024"),
    (
        "Which came first, 2024-05-03 14:00 or 9 am on 3 May 2024?",
        "Friday, May 3, 2024, 09:00 (UTC)",
    ),
]

UNCLEAR = [
    ("What time is it in Tokyo when it is 3 pm in Berlin?", "on which day"),
    ("How many hours from 10 pm on 1 March 2025 to 6 am?", "on which day"),
    ("How many minutes from 10:00 to 9:00 on 1 March 2025?", "give both dates"),
    ("How many hours between 9 am in Berlin on 3 March 2025 and 1 pm on 4 March 2025?", "zone"),
    ("how many days between 2025-03-01 10:00 and 2025-03-03 09:00", "ask for hours"),
    ("What calendar week is 2021-01-03 in?", "ISO week"),
    ("How many Mondays are there between 2024-05-06 and 2024-05-31?", "both included"),
    ("How many Mondays are there from 03/04/2024 to 2024-05-31?", "both included"),
    ("What day of the year is Christmas?", "no year"),
    ("If today is 2025-03-01, what time is it in Tokyo?", "supposed day"),
]

BEYOND = [
    "What time is it in Munich when it is 3 pm in Berlin on 3 March 2025?",
    "What time is it in Paris, Texas?",
    "What time is it in Victoria?",
    "What time is it in Tokyo and in Berlin?",
    "What is the weather in Tokyo?",
    "What time is it in Tokyo when it is midnight in Berlin on 3 March 2025?",
    "What time is it in Tokyo when it is 3 o'clock in Berlin on 3 March 2025?",
    "What time is it in Tokyo when it is 13 pm in Berlin on 3 March 2025?",
    "What time is it in Tokyo when it is 9:5 in Berlin on 3 March 2025?",
    "What time is it in Tokyo when it is not 3 pm in Berlin on 3 March 2025?",
    "How many hours are there between 2025-03-01 10:00 and 2025-03-02?",
    "How many hours of work are there between 2025-03-01 10:00 and 2025-03-02 10:00?",
    "How many Mondays and Fridays are there in May 2024?",
    "How many Mondays are left in 2025?",
    "How many business days are there in May 2024 excluding holidays?",
    "How many Mondays are there in a month?",
    "Which week of the month is 2024-05-17?",
    "What fiscal quarter is 2024-05-17 in?",
    "Which came first, the chicken or the egg?",
    "Which is later, 5 or 7?",
    "Which is earlier, 9:00 or 10:00?",
    "Which of 2024-02-29, 2024-03-01 and 2024-03-02 is earlier?",
]

REFUSED_BY_THE_TOOL = [
    ("What time is it in Tokyo when it is 2:30 in Berlin on 30 March 2025?", "invalid_date"),
    ("What time is it in UTC at 02:30 Berlin time on 26 October 2025?", "ambiguous_date"),
    ("What time is it in UTC when it is 3 pm in Berlin on 03/04/2025?", "ambiguous_date"),
    ("Which came first: 03/04/2025 or 2025-05-01?", "ambiguous_date"),
]
