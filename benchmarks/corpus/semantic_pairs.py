"""Short passages in threes, written for `semantic.py`: a text, the same in other words, another one on its subject."""

TRIPLES = [
    (
        "The bridge was closed to heavy lorries after inspectors discovered cracks in two of its main girders.",
        "Inspectors found fractures in a pair of the bridge's principal beams, so large trucks may no longer cross it.",
        "The bridge was opened by the mayor in 1931 and is painted anew every seven years by a crew of forty.",
    ),
    (
        "Bread goes stale faster in the refrigerator than on the counter: cold speeds up the starch's crystallising.",
        "A loaf kept in the fridge dries out sooner, since low temperature lets starch crystallise more quickly.",
        "Bread dough should rest for an hour so that the gluten relaxes before the loaf is shaped and baked.",
    ),
    (
        "Octopuses have three hearts, two of which pump blood to the gills while the third serves the whole body.",
        "An octopus possesses a trio of hearts: one supplies the body, and a pair push blood through its gills.",
        "Octopuses can squeeze through any gap that is wider than their beak, the only hard part of the animal.",
    ),
    (
        "To reset the router, hold the small button at the back for ten seconds until the lights begin to blink.",
        "Keep pressing the little key on the rear for about ten seconds; "
        "when the lamps flash, the router has been reset.",
        "The router has four network sockets at the back and can be mounted on a wall with two screws.",
    ),
    (
        "Sales in the third quarter fell by eight per cent as customers put off buying new cars.",
        "Because buyers delayed purchases of new automobiles, third-quarter revenue dropped eight percent.",
        "The company will move its head office to Antwerp in the third quarter and hire two hundred engineers.",
    ),
    (
        "The library will stay open until midnight during the examination weeks so that students can study longer.",
        "In exam season the library extends its hours to twelve at night, giving students more time to learn.",
        "The library asks its visitors to return borrowed books within four weeks or to renew them online.",
    ),
    (
        "Drinking enough water before a long run lowers the risk of cramps and heat exhaustion.",
        "Runners who hydrate well ahead of a long distance are less likely to suffer cramping or overheat.",
        "A long run should be followed by a day of rest, because muscles grow when they are not in use.",
    ),
    (
        "Rain had washed away the path, so the hikers turned back before they reached the summit.",
        "The walkers gave up short of the peak since the trail had been destroyed by heavy rainfall.",
        "The hikers reached the summit at dawn and saw three countries and the sea from there.",
    ),
    (
        "The court ruled that the landlord must return the deposit because no damage had been shown.",
        "As no harm to the flat was proven, judges ordered the owner to pay the security deposit back.",
        "The court ruled that the landlord may raise the rent once a year in line with inflation.",
    ),
    (
        "Light from the Sun takes a little more than eight minutes to reach the Earth.",
        "Sunlight needs just over eight minutes for its journey to our planet.",
        "The Sun is so large that more than a million Earths would fit into it.",
    ),
    (
        "The museum returned the bronze statues to Nigeria more than a century after they were looted.",
        "Over a hundred years after being plundered, the bronze sculptures were given back to Nigeria by the museum.",
        "The museum bought a bronze statue by a young sculptor from Nigeria for its new garden.",
    ),
    (
        "Add the flour gradually while stirring, otherwise lumps will form in the sauce.",
        "If you do not whisk the flour in little by little, your sauce ends up lumpy.",
        "Let the sauce simmer over low heat for twenty minutes and season it with nutmeg.",
    ),
    (
        "The train was delayed for two hours because a tree had fallen on the line near Ghent.",
        "A fallen tree on the tracks close to Ghent held the train up for two hours.",
        "The train from Ghent runs every two hours and takes bicycles free of charge at weekends.",
    ),
    (
        "Vaccination campaigns wiped out smallpox, whose last natural case was recorded in 1977.",
        "Smallpox disappeared thanks to mass immunisation; nobody has caught it naturally since 1977.",
        "Smallpox left survivors with deep scars and often made them blind in one or both eyes.",
    ),
    (
        "The software refuses passwords that are shorter than twelve characters or contain the user's name.",
        "The program rejects any password of fewer than twelve characters, or one that includes the name of the user.",
        "The software stores passwords as salted hashes and locks an account after five failed attempts.",
    ),
    (
        "Many farmers in the valley switched from wheat to olives after three dry years in a row.",
        "Following a third consecutive drought, numerous growers in the valley gave up wheat and planted olive trees.",
        "Farmers in the valley harvest wheat in June with machines that they own together.",
    ),
    (
        "She learned to play the violin at four and gave her first concert when she was nine.",
        "Having taken up the violin aged four, she performed in public for the first time at nine.",
        "She sold her violin to pay for her studies and never played in public again.",
    ),
    (
        "The river freezes every winter, and children skate on it on their way to school.",
        "Each winter the stream turns to ice and pupils travel to class on skates.",
        "The river floods every spring, and the school has to be closed for several days.",
    ),
    (
        "Unplug the machine before you open its cover, since parts inside remain under high voltage.",
        "Disconnect the device from the mains prior to removing the lid: components within carry dangerous voltage.",
        "Put the machine on a level surface and keep its cover free of dust and moisture.",
    ),
    (
        "Economists expect the central bank to cut interest rates in autumn if prices keep falling.",
        "Should inflation go on easing, analysts believe the central bank will lower its rates this fall.",
        "Economists blame the central bank for raising interest rates too late after the war.",
    ),
    (
        "The ancient Romans mixed volcanic ash into their concrete, which made it last in sea water.",
        "Roman builders' concrete survives in the ocean because they blended ash from volcanoes into it.",
        "The ancient Romans heated their baths with hot air that flowed under raised floors.",
    ),
    (
        "Bees tell each other where flowers are by a dance whose angle shows the direction.",
        "By dancing at a certain angle, a honeybee informs the others which way the blossoms lie.",
        "Bees keep their hive at an even temperature by fanning their wings in summer.",
    ),
    (
        "The mayor apologised for the broken heating in the city's schools and promised repairs before December.",
        "Repairs will be done by December, said the mayor, who regretted that schools in the city were without heat.",
        "The mayor visited the city's schools in December and read fairy tales to the first classes.",
    ),
    (
        "Old batteries must not be thrown into household waste, because their metals poison the ground water.",
        "Do not put used batteries in the ordinary bin: the metals in them contaminate groundwater.",
        "Old batteries lose a fifth of their charge in a month, even when nothing is connected to them.",
    ),
]
