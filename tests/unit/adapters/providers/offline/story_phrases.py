"""Word problems of several sentences, with answers worked out by hand."""

AMOUNTS = [
    ("Mia has 36 stamps and gives a quarter of them to Leo. How many does she have left?", "27"),
    ("I had $80. I spent $17.45 on shoes and $9.30 on lunch. How much money is left?", "53.25"),
    ("I have 60 euros and buy a bag for 21.50. How much do I have left?", "38.5"),
    (
        "A florist has 90 roses, sells 58 of them and then buys another 25. How many roses are"
        " there now?",
        "57",
    ),
    (
        "There are 24 people on a bus. At the next stop 7 get off and 5 get on. How many people"
        " are on the bus now?",
        "22",
    ),
    ("A tank containing 300 litres loses 4 litres an hour. How much is left after 6 hours?", "276"),
    ("Nina had 12 pens, lost half of them and found 2. How many pens does she have now?", "8"),
    ("Ola has 5 coins. His uncle gives him 8 more. How many coins does Ola have?", "13"),
    ("There were 40 eggs in a basket and 10% of them are broken. How many eggs are left?", "36"),
]
"""An amount that grows and shrinks."""

PURCHASES = [
    ("I buy 4 teas at $2.75 each and 3 cakes at $3.60 each. What is the total?", "21.8"),
    ("What do 2 shirts at 19.90 each and a belt for 12.50 cost altogether?", "52.3"),
    ("We order 3 soups at 4.50 each and a salad for 7. How much change do we get from 30?", "9.5"),
    ("She rents a boat for 4 hours at 35 an hour plus a flat fee of 20. What does it cost?", "160"),
    ("A pack of 8 batteries costs 6.40. What is the price per battery?", "0.8"),
    ("If 4 kg of pears cost 9.20, how much do 7 kg cost?", "16.1"),
    ("I bought a chair for 160 and sold it for 200. What was my profit in percent?", "25"),
    ("Kim bought a bike for $300 and later sold it for $255. How much did she lose?", "45"),
]

PERCENTAGES = [
    ("A tablet was $500. First it dropped 20%, then another 10%. What is the price now?", "360"),
    ("A village of 4,000 people grew by 2.5% last year. How many people are there now?", "4100"),
    ("There's a 35% discount on a $180 coat. How much do I save?", "63"),
    ("The price before tax is 29.99 and VAT is 19%. What is the total, to the cent?", "35.69"),
    (
        "Lunch came to $48. With a 25% tip, split evenly among 4 people, how much does each pay?",
        "15",
    ),
    ("A radio costs 90. There is a 10% discount and VAT is 20%. What do I pay?", "97.2"),
    ("My rent was 800. It rose by 5% and then fell by 10%. What is my rent now?", "756"),
    ("A book costs $15. If tax is 6%, what is the total cost?", "15.9"),
    ("sales tax of 7.5% on $84", "6.3"),
    ("By what percent did the fare go up if it rose from $2.50 to $2.75?", "10"),
    ("A sofa is reduced from 800 to 600 euros. By what percentage was it reduced?", "25"),
    ("Simple interest on 1,500 euros at 4% for 3 years", "180"),
    (
        "If I put $2,000 in an account with 10% interest compounded annually, how much will I have"
        " after 2 years?",
        "2420",
    ),
    ("What is the compound interest on $1,000 at 8% compounded semi-annually for 1 year?", "81.6"),
    ("How much simple interest do I earn on $400 at 3% for 6 months?", "6"),
]

RATES = [
    ("My van uses 8.5 litres per 100 km. How many litres do I need for 340 km?", "28.9"),
    ("A recipe for 6 people needs 450 g of rice. How much rice do I need for 4 people?", "300"),
    ("A snail crawls 5 cm per hour. How many cm does it crawl in 90 minutes?", "7.5"),
    ("Ada reads 24 pages a day. How many days does she need for 312 pages?", "13"),
    ("Bob earns $21.50 an hour and works 30 hours a week. What does he earn in a week?", "645"),
    ("I work 6 hours a day, 4 days a week. How many hours do I work in 3 weeks?", "72"),
    ("My salary is 42,000 a year. How much is that per month?", "3500"),
    ("A car drives 260 km in 4 hours. How fast is it on average?", "65"),
    ("How long does a 180 km trip take at 45 km/h?", "4"),
    ("A van holds 14 boxes. How many vans are needed for 100 boxes?", "8"),
    ("100 eggs are packed in boxes of 12. How many full boxes are there?", "8"),
    ("100 eggs are packed in boxes of 12. How many eggs are left over?", "4"),
    ("How many 0.5 litre bottles can be filled from 9 litres?", "18"),
    ("A box holds 12 eggs. How many eggs are in 7 boxes?", "84"),
]

HOLDERS = [
    ("Ben is 41. His sister is 8 years younger. How old is she?", "33"),
    ("Ina has three times as many cards as Jan. Jan has 14. How many do they have together?", "56"),
    ("Ina has 6 more cards than Jan. Jan has 14. How many cards does Ina have?", "20"),
    ("Tom has 7 apples and Ann has 5. How many apples do they have together?", "12"),
    ("A farmer has 18 goats and 27 hens. How many animals does he have in total?", "45"),
    ("There are 9 red balls and 6 blue balls in a bag. How many balls are there?", "15"),
    ("My marks were 71, 88, 93 and 80. What is my average?", "83"),
    (
        "The temperatures were 11, 14, 9, 13 and 18 degrees. What was the mean temperature?",
        "13",
    ),
    ("I ran 4 km, 7 km and 10 km. What is the total?", "21"),
]

SHAPES_AND_UNITS = [
    ("A rectangle is 14 cm by 6.5 cm. What is its area?", "91"),
    ("What is the perimeter of a rectangle with sides 9 and 16?", "50"),
    ("What is the area of a triangle with base 10 and height 7?", "35"),
    ("What's the volume of a box that is 2 by 5 by 6?", "60"),
    ("What is the circumference of a circle with radius 5, rounded to 2 decimals?", "31.42"),
    ("How many meters are there in 4.6 kilometers?", "4600"),
    ("Convert 1.75 kg to grams", "1750"),
    ("5 feet 4 inches in cm", "162.56"),
    ("Convert 30 degrees Celsius to Fahrenheit.", "86"),
    ("what is 14 degrees fahrenheit in celsius", "-10"),
    ("How many minutes from 8:35 to 10:20?", "105"),
    ("A shift starts at 7:30 and ends at 16:15. How many hours does it last?", "8.75"),
    ("What is half the sum of 9 and 15?", "12"),
    ("the sum of the numbers from 1 to 40", "820"),
    ("find the range of 14, 3, 27 and 9", "24"),
    ("take 12 away from 50, then double what is left", "76"),
    ("What number is four times as large as 32?", "128"),
]

WEEKDAYS = [
    ("If today is Thursday, what day is it in 10 days?", "Sunday"),
    ("Which weekday comes 23 days after Monday?", "Wednesday"),
    ("If today is Sunday, what day was it 8 days ago?", "Saturday"),
    ("How long is it until February 20, 2025, in days?", "36"),
    ("In how many days is 1 February 2025?", "17"),
    ("Starting from 8 May 2023, what is the date 12 days later?", "Saturday, May 20, 2023"),
    ("What is the next business day after Friday, 6 June 2025?", "Monday, June 9, 2025"),
    ("A trial started on 2024-01-15 and took 90 days. On which weekday did it end?", "Sunday"),
    ("How many days are there in the first half of 2023?", "181"),
    ("How many days are in Q1 of 2024?", "91"),
    ("I was born on 14 July 1998. When will I turn 30?", "Friday, July 14, 2028"),
    ("It's 15 March 2024. What was the date two weeks ago?", "Friday, March 1, 2024"),
    ("How many days are left in this year?", "350"),
    ("What day comes after Saturday?", "Sunday"),
    ("the 20th of next month", "Thursday, February 20, 2025"),
    ("write 2025-09-08 out in full", "Monday, September 8, 2025"),
    (
        "A parcel was sent on 3 March 2021 and arrived 9 days later. When did it arrive?",
        "Friday, March 12, 2021",
    ),
]

STOCKS = [
    ("What was the difference between the high and the low of IBM on 2010-05-06?", "11.93"),
    ("what's the day high for microsoft on 7 May 2010", "28.95"),
    ("How much would 20 shares of Apple have cost at the close on 1 June 2009?", "2787"),
    ("How did IBM perform in 2011? Round to 2 decimals.", "26.8"),
]

TRAPS = [
    "Anna has 24 sweets and gives a third of them to Ben. How many does Ben have?",
    "Anna has 24 sweets and gives 3 to each of her 4 friends. How many does she have left?",
    "Anna has 24 sweets and eats 2 every day. How many are left?",
    "Tom has 10 marbles and did not lose 3. How many are left?",
    "Tom has 3 apples and buys 4 pears. How many apples does Tom have?",
    "Tom has 10 marbles and buys 2 bags of marbles. How many marbles does he have?",
    "A farmer had 17 sheep and all but 9 died. How many are left?",
    "I had 100 dollars and spent 20 euros. How much is left?",
    "I had $100 and spent half of it and then half of the rest. How much is left?",
    "If some of the 30 pupils leave, how many remain?",
    "A tank has 100 litres and gains 5 litres an hour and loses 2 litres. How much is left after 2"
    " hours?",
    "A tank has 100 litres and loses 5 litres an hour. How much is left after 2 days?",
    "I buy 3 pens for $2 and a pad for $3. What is the total?",
    "I buy 3 coffees at $4.25 each and 2 free muffins. What is the total?",
    "A shirt costs $50 after a 20% discount. What was the price before?",
    "My salary was 3000, it rose by 5% and my rent fell by 10%. What is my salary now?",
    "My rent was 1000. It rises by 5% every year. What is the rent now?",
    "Dinner was $50 with a 10% tax and a 20% tip. What is the total?",
    "A town had 1000 people. It grew by 10% a year for 3 years. How many people now?",
    "I invest 5000 at 4% for 2 years. How much will I have?",
    "If 3 workers need 6 hours, how many hours do 6 workers need?",
    "3 workers paint 6 rooms in 2 days. How many rooms do 5 workers paint in 2 days?",
    "If 5 machines make 5 widgets in 5 minutes, how many minutes do 100 machines need for 100"
    " widgets?",
    "A man walks 3 km in 2 hours. How many km does he walk in 5 days?",
    "Maria reads 35 pages a day. How many days does she need for 421 pages?",
    "I work 8 hours a day. How many hours do I work in a week?",
    "Tom earns $18.50 an hour and works 38 hours a week. What does he earn in a month?",
    "John is 34. His sister is 6 years younger. How old is he?",
    "Tom has 3 more apples than Ann. Together they have 11. How many does Tom have?",
    "Anna is 5 cm taller than Ben. How tall is Anna?",
    "A class has 12 boys and 15 girls. How many teachers are there?",
    "My test scores were 78, 85, 92 and 89. What is my average without the lowest?",
    "What is the area of a triangle with sides 6 and 4?",
    "A room is 4 m by 350 cm. What is its area?",
    "How many km is 5 kg?",
    "How many minutes from 11:05 to 9:20?",
    "How many hours from 9 to 5?",
    "If today is Monday, what date is it in 3 days?",
    "If today is Monday, what day is it in 3 months?",
    "sum of all integers between 1 and 10",
]
"""Each looks like a problem that is known, and is another one."""
